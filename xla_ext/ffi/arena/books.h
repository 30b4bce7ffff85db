// Checked mode: a record of the blocks of an arena and their owners, kept and
// checked while a step runs, the "books" of that run.
// Standard library only.
#ifndef COOP_FFI_ARENA_BOOKS_H_
#define COOP_FFI_ARENA_BOOKS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace coop {

enum class EventKind : int64_t {
  kStore = 0,
  kLoad = 1,
};

// A plain record: a row of the table seen in Python.
struct ArenaEvent {
  int64_t boundary;
  EventKind kind;
  int64_t tensor;
  int64_t offset;
  int64_t bytes;
};

// One value that an exchange stores or loads.
struct ArenaEntry {
  int64_t tensor;
  std::string_view name;  // For messages.
  int64_t offset;
  int64_t bytes;
  uint64_t digest;  // Of its bytes; the same number everywhere if not known.
};

// One run of a step through one arena. A block holds a value from its store to
// its load; no two blocks share bytes. Every method that returns a text has
// found something wrong, says what, and has not changed the books.
class Books {
 public:
  [[nodiscard]] std::optional<std::string> Load(int64_t boundary,
                                                const ArenaEntry& entry);
  [[nodiscard]] std::optional<std::string> Store(int64_t boundary,
                                                 const ArenaEntry& entry);
  // After the last exchange nothing may be left.
  [[nodiscard]] std::optional<std::string> Close(int64_t boundary) const;

  [[nodiscard]] const std::vector<ArenaEvent>& events() const {
    return events_;
  }

 private:
  struct Block {
    int64_t tensor;
    std::string name;
    int64_t bytes;
    uint64_t digest;
    int64_t boundary;
  };

  [[nodiscard]] static std::string Text(const Block& block, int64_t offset);

  std::map<int64_t, Block> blocks_;  // By offset.
  std::vector<ArenaEvent> events_;
};

// The books of every run, found by the number of its step's books and the
// address of its arena: a call knows no more of the run it belongs to. Safe to
// use from threads; runs at the same time have different arenas.
class BookShelf {
 public:
  // New books for a run that begins. What an earlier run left unfinished at
  // that address is dropped: its arena is gone.
  std::shared_ptr<Books> Begin(int64_t number, const void* arena);
  // Those of a run that goes on; nullptr if none does there.
  [[nodiscard]] std::shared_ptr<Books> Find(int64_t number,
                                            const void* arena) const;
  // The run is over; its events are those that LastEvents returns from now on.
  void Finish(int64_t number, const void* arena);
  // Of the last finished run; nullopt if there is none.
  [[nodiscard]] std::optional<std::vector<ArenaEvent>> LastEvents(
      int64_t number) const;
  // A step is gone, and its books with it.
  void Remove(int64_t number);

 private:
  struct Shelf {
    std::map<const void*, std::shared_ptr<Books>> open;
    std::shared_ptr<const Books> last;
  };

  mutable std::mutex mutex_;
  std::map<int64_t, Shelf> shelves_;
};

// That of this process: a handler is a plain function, called by XLA.
BookShelf& TheBookShelf();

}  // namespace coop

#endif  // COOP_FFI_ARENA_BOOKS_H_
