// Composition: blocks that fit side by side or on top of each other become one.
#ifndef COOP_CORE_PACKING_COMPOSE_H_
#define COOP_CORE_PACKING_COMPOSE_H_

#include <cstdint>
#include <vector>

#include "core/base/types.h"
#include "core/packing/problem.h"

namespace coop {

// Bottom up, like a jigsaw: blocks of one lifetime are stacked, and a block that
// begins where another of about its size ends lies beside it, at its offset.
// Where little is wasted these are the pieces of a good packing, and far fewer.
class Composition {
 public:
  // `problem` has no fixed blocks and must outlive this.
  explicit Composition(const PackingProblem& problem);

  // Joins blocks whose sizes differ by at most `tolerance` of the larger one,
  // the most alike first, until there are none. Adds to `work` what it did.
  void Join(double tolerance, int64_t& work);

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

  void StackAll(int64_t& work);
  bool JoinSides(double tolerance, int64_t& work);
  void Add(int32_t first, int32_t second, bool is_stack);

  const PackingProblem& problem_;
  std::vector<Piece> pieces_;
  size_t num_pieces_;  // That are no part of another.
};

}  // namespace coop

#endif  // COOP_CORE_PACKING_COMPOSE_H_
