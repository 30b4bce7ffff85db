// Composition: blocks that fit side by side or on top of each other become one.
#ifndef COOP_CORE_PACKING_COMPOSE_H_
#define COOP_CORE_PACKING_COMPOSE_H_

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <queue>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/types.h"
#include "core/packing/problem.h"

namespace coop {

// Bottom up, like a jigsaw: blocks of one lifetime are stacked, and a block that
// begins where another of about its size ends lies beside it, at its offset.
// Where little is wasted these are the pieces of a good packing, and far fewer.
//
// What lies above the lower one of two that are side by side is lost. A section
// can afford as much as its load falls short of the peak that is asked for: that
// alone says how unlike two sizes may be. Where several begin or end, those of
// about one size meet by chance, so the pair that is joined next is the one with
// the least difference times the number of pairs there are at that place.
class Composition {
 public:
  // `problem` has no fixed blocks, a load of at most `peak`, and must outlive
  // this.
  Composition(const PackingProblem& problem, Bytes peak);

  // Joins until nothing can be joined, or until `work` reaches `work_end`; to be
  // called once. Adds to `work` what it did. About so many of what it would join
  // or stack, chosen by chance, are `passed_over`: one that belongs elsewhere
  // spoils all that comes after it.
  void Join(std::mt19937_64& random, double passed_over, int64_t work_end,
            const Deadline& deadline, int64_t& work);

  [[nodiscard]] size_t num_pieces() const { return num_pieces_; }
  // What is left: its blocks' sources are pieces of this composition.
  [[nodiscard]] PackingProblem Reduced(Bytes alignment) const;
  // A packing of the last Reduced() as one of the problem.
  [[nodiscard]] PackingSolution Expand(const PackingProblem& reduced,
                                       const PackingSolution& solution) const;

 private:
  // A block of the problem, or two pieces.
  struct Piece {
    int32_t begin;
    int32_t end;
    Bytes bytes;
    int32_t first = kNone;   // The lower, or the earlier one.
    int32_t second = kNone;
    bool is_stack = false;
    bool is_joined = false;  // Part of another.
  };
  // The least comes first.
  struct Pair {
    double badness;
    int32_t first;
    int32_t second;
    auto operator<=>(const Pair&) const = default;
  };
  using BySize = std::set<std::pair<Bytes, int32_t>>;

  [[nodiscard]] static bool PassesOver(std::mt19937_64& random, double share);
  // Stacks it on what has the same lifetime.
  void Insert(int32_t index, std::mt19937_64& random, double share);
  void Remove(int32_t index);
  // The pairs of pieces that meet where section `line` begins.
  void PushPairs(int32_t line, int64_t& work);
  // Takes from the slack what is lost by joining these; false if there is less.
  [[nodiscard]] bool Afford(const Piece& a, const Piece& b, int64_t& work);

  const PackingProblem& problem_;
  std::vector<Bytes> slack_;      // Of each section: bytes it may still waste.
  std::vector<Piece> pieces_;
  size_t num_pieces_ = 0;         // That are no part of another.
  // Of each line between sections: the pieces that begin and end there.
  std::vector<BySize> begins_;
  std::vector<BySize> ends_;
  // The latest one of each lifetime.
  std::map<std::pair<int32_t, int32_t>, int32_t> by_lifetime_;
  std::priority_queue<Pair, std::vector<Pair>, std::greater<>> pairs_;
};

}  // namespace coop

#endif  // COOP_CORE_PACKING_COMPOSE_H_
