// Checkpoints: plans to start from, as of Chen et al. (2016). The turn is where the
// forward pass ends and the backward pass begins. Of the values that are idle
// there, the plan keeps those alive between a few segments of the forward pass;
// the others are recomputed segment by segment.
#ifndef COOP_CORE_SEARCH_CHECKPOINTS_H_
#define COOP_CORE_SEARCH_CHECKPOINTS_H_

#include <vector>

#include "core/base/types.h"
#include "core/graph/graph.h"
#include "core/search/gaps.h"
#include "core/search/rollout.h"

namespace coop {

class Checkpoints {
 public:
  // `unmodified` is the rollout of GapTable::KeepAll; it is read only here.
  // `graph` and `gaps` must outlive this.
  Checkpoints(const Graph& graph, const GapTable& gaps,
              const Rollout& unmodified);

  // The bytes idle at the turn.
  [[nodiscard]] Bytes idle_bytes() const { return idle_bytes_; }

  // Every segment makes about `segment_bytes` of that; segments end where
  // little is alive.
  [[nodiscard]] Decisions Every(Bytes segment_bytes) const;

 private:
  // A gap of less than this part of the program is no use for recomputation.
  static constexpr int64_t kShortestPart = 50;

  [[nodiscard]] std::vector<Position> Boundaries(Bytes segment_bytes) const;
  // Idle at the turn, and not just passing by.
  [[nodiscard]] bool CrossesTurn(GapIdx gap) const {
    const Position begin = gaps_.begin(gap);
    const Position end = gaps_.end(gap);
    return begin <= turn_ && turn_ < end && end != kNever &&
           end - begin > graph_.num_ops() / kShortestPart;
  }

  const Graph& graph_;
  const GapTable& gaps_;
  Position turn_ = 0;  // Where the unmodified program needs the most bytes.
  Bytes idle_bytes_ = 0;
  std::vector<Bytes> idle_made_;  // By position: made there, idle at the turn.
  // By position: alive behind it, for the forward pass.
  std::vector<Bytes> carried_;
};

}  // namespace coop

#endif  // COOP_CORE_SEARCH_CHECKPOINTS_H_
