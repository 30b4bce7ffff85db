// Does a packing below a given peak exist? A search over skylines.
#ifndef COOP_CORE_PACKING_SKYLINE_SEARCH_H_
#define COOP_CORE_PACKING_SKYLINE_SEARCH_H_

#include <cstdint>
#include <optional>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/types.h"
#include "core/packing/problem.h"

namespace coop {

// A packing is built from below. The tops of the blocks placed so far are a
// skyline over time, with walls where a section has no more blocks to come:
//
//   offset            wall
//     |      +-----+  #
//     |  +---+     |  #         A valley is a stretch between higher stretches.
//     |  |   +--+  |  #         What covers its left end either begins there and
//     +--+------+--+----> time  fits between its sides, or nothing lies there.
//
// In a packing whose offsets have the least sum every block rests on another or
// on the ground, so these few choices are all there are: a block that begins
// (ends) at the left (right) end of a valley, or waste. A section can afford as
// much waste as its load falls short of the peak that is asked for. The search
// takes the end of a valley with the fewest choices next: one that has none
// refutes the packing so far, and one that has a single one costs nothing.
//
// Close to MiniMalloc (Moffitt, ASPLOS 2023), which takes the blocks in order of
// their offsets instead.
class PackingSearch {
 public:
  enum class Outcome {
    kFound,
    kRefuted,  // No packing has such a peak.
    kGaveUp,
  };

  // A problem without fixed blocks.
  explicit PackingSearch(const PackingProblem& problem);

  // Looks for a peak of at most `peak`, and spends at most about `work_limit`
  // elementary steps, which are added to `work`. Different seeds look at
  // different places first.
  [[nodiscard]] Outcome Find(Bytes peak, uint64_t seed, int64_t work_limit,
                             const Deadline& deadline, int64_t& work);

  // After kFound.
  [[nodiscard]] PackingSolution solution() const;

 private:
  // One end of a valley and what may be there.
  struct Corner {
    int32_t section = 0;
    bool is_left = true;
    int64_t num_choices = 1;
    int64_t weight = 0;
  };
  struct Frame {
    size_t trail_size;
    size_t num_placed;
    size_t first_choice;
    int32_t section;
  };
  struct Change {
    int64_t* cell;
    int64_t old_value;
  };

  void Reset(Bytes peak, uint64_t seed);
  void Set(int64_t& cell, int64_t value);
  void Undo(const Frame& frame);

  // False if the packing so far is refuted; otherwise the corner to go on from.
  [[nodiscard]] bool FindCorner(Corner& corner, int64_t& work);
  [[nodiscard]] bool Lift(int32_t begin, int32_t end, int64_t& work);
  [[nodiscard]] bool CanWaste(int32_t section, int32_t begin, int32_t end,
                              int64_t& work) const;
  // The blocks that may be at a corner of the valley [begin, end); appends them
  // to `choices` unless it is null.
  int64_t ListBlocks(int32_t begin, int32_t end, bool is_left,
                     std::vector<int32_t>* choices, int64_t& work) const;
  void PushChoices(const Corner& corner, int64_t& work);
  void Apply(int32_t choice, int32_t section);

  [[nodiscard]] std::pair<int32_t, int32_t> Plateau(int32_t begin,
                                                    int32_t end) const;
  [[nodiscard]] Offset HeightLeftOf(int32_t section) const;
  [[nodiscard]] Offset HeightRightOf(int32_t section) const;

  const PackingProblem& problem_;
  // Blocks by where they begin and end; the widest of a list last.
  std::vector<std::vector<int32_t>> begin_at_;
  std::vector<std::vector<int32_t>> end_at_;
  std::vector<Bytes> least_beginning_at_;
  // Of each line between sections: one more than how often it refuted.
  std::vector<int64_t> weights_;

  std::mt19937_64 random_;
  bool shuffle_ = false;
  // Of each section. A height of kWall: nothing comes any more.
  std::vector<int64_t> height_;
  std::vector<int64_t> slack_;      // Bytes it may still waste.
  std::vector<int64_t> remaining_;  // Bytes of the blocks to come.
  std::vector<int64_t> closed_;     // Nothing rests at its present height.
  std::vector<int64_t> top_;        // The block right below, or kNone.
  std::vector<Offset> offsets_;     // Of each block; kNone: to come.
  std::vector<int32_t> placed_;     // In the order of placing.
  std::vector<Change> trail_;
  std::vector<Frame> frames_;
  std::vector<int32_t> choices_;
};

}  // namespace coop

#endif  // COOP_CORE_PACKING_SKYLINE_SEARCH_H_
