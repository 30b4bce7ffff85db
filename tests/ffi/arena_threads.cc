// Steps on several threads, as XLA runs them, without XLA: every thread runs
// exchanges on an arena of its own, all share one thread pool and one shelf of
// books. For ThreadSanitizer, and for AddressSanitizer.

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ffi/arena/books.h"
#include "ffi/arena/copy_cpu.h"
#include "ffi/arena/exchange.h"

namespace {

constexpr int kThreads = 4;
constexpr int kWorkers = 3;
constexpr int kSteps = 20;
constexpr int kBoundaries = 6;
constexpr int64_t kValueBytes = int64_t{3} << 20;  // Enough to be split.

void Check(bool is_right, const std::string& text) {
  if (is_right) return;
  std::fprintf(stderr, "arena_threads: %s\n", text.c_str());
  std::abort();
}

// Runs tasks in no particular order, some of them late.
class Workers {
 public:
  Workers() {
    for (int i = 0; i < kWorkers; ++i) threads_.emplace_back([this] { Run(); });
  }
  ~Workers() {
    is_over_ = true;
    for (std::thread& thread : threads_) thread.join();
  }
  void Schedule(std::function<void()> task) {
    const std::scoped_lock lock(mutex_);
    tasks_.push_back(std::move(task));
  }

 private:
  void Run() {
    for (;;) {
      std::function<void()> task;
      {
        const std::scoped_lock lock(mutex_);
        if (!tasks_.empty()) {
          task = std::move(tasks_.back());
          tasks_.pop_back();
        }
      }
      if (task) {
        task();
      } else if (is_over_) {
        return;
      } else {
        std::this_thread::yield();
      }
    }
  }

  std::mutex mutex_;
  std::deque<std::function<void()>> tasks_;
  std::atomic<bool> is_over_ = false;
  std::vector<std::thread> threads_;
};

// Stores a value at every boundary and brings back the one before.
void RunStep(Workers& workers, coop::BookShelf& shelf, int64_t number,
             unsigned char tag) {
  std::vector<char> arena(2 * kValueBytes);
  std::vector<char> value(kValueBytes, static_cast<char>(tag));
  std::vector<char> loaded(kValueBytes);
  const auto books = shelf.Begin(number, arena.data());
  for (int64_t boundary = 0; boundary < kBoundaries; ++boundary) {
    Check(shelf.Find(number, arena.data()) == books, "other books");
    const int64_t store_at = boundary % 2 * kValueBytes;
    const int64_t load_at = kValueBytes - store_at;
    const std::vector<int64_t> stores{store_at};
    const std::vector<int64_t> loads(boundary > 0 ? 1 : 0, load_at);
    coop::Exchange exchange{
        .arena = {arena.data(), std::ssize(arena)},
        .arena_result = {arena.data(), std::ssize(arena)},
        .operands = {{value.data(), kValueBytes}},
        .results = {},
        .num_pass_through = 0,
        .store_offsets = stores,
        .load_offsets = loads,
    };
    if (boundary > 0) {
      exchange.results.push_back({loaded.data(), kValueBytes});
      const auto fault = books->Load(
          boundary, {boundary - 1, "value", load_at, kValueBytes, 0});
      Check(!fault, fault.value_or(""));
    }
    const auto fault =
        books->Store(boundary, {boundary, "value", store_at, kValueBytes, 0});
    Check(!fault, fault.value_or(""));
    Check(!coop::FindFault(exchange), "a fault");
    const coop::ExchangeCopies copies = coop::ListCopies(exchange);
    const auto schedule = [&workers](std::function<void()> task) {
      workers.Schedule(std::move(task));
    };
    coop::CopyAll(copies.before, 1 + kWorkers, schedule);
    coop::CopyAll(copies.after, 1 + kWorkers, schedule);
    if (boundary > 0) Check(loaded == value, "another value came back");
  }
  shelf.Finish(number, arena.data());
  Check(shelf.LastEvents(number).has_value(), "no events");
}

}  // namespace

int main() {
  Workers workers;
  coop::BookShelf shelf;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      for (int step = 0; step < kSteps; ++step) {
        // Two threads each call the same step.
        RunStep(workers, shelf, i / 2, static_cast<unsigned char>(i + step));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::printf("arena_threads: %d steps on %d threads, %d workers\n",
              kThreads * kSteps, kThreads, kWorkers);
  return 0;
}
