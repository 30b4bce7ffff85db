// Finds the blocks that a simulated run needs, evicting where it has to.
#ifndef COOP_CORE_ONLINE_PLACER_H_
#define COOP_CORE_ONLINE_PLACER_H_

#include <span>
#include <vector>

#include "core/base/types.h"
#include "core/graph/graph.h"
#include "core/online/options.h"
#include "core/online/policy.h"
#include "core/online/recorder.h"
#include "core/online/state.h"
#include "core/schedule/schedule.h"

namespace coop {

// In the order in which it looks: outputs take over the blocks of inputs that
// nothing needs any more, then free blocks, then those of evicted tensors or of
// inputs that can be recomputed, whichever is cheaper.
class Placer {
 public:
  // All must outlive the placer.
  Placer(const OnlineOptions& options, State& state, Policy& policy,
         Recorder& recorder);

  // A block for a graph input; false if there is none.
  [[nodiscard]] bool PlaceInput(TensorIdx t);
  // Blocks for what `op`, whose operands and outputs are pinned, makes and for
  // its workspace; false if there are none, even with all evicted that may be.
  [[nodiscard]] bool PlaceRun(StepKind kind, OpIdx op);
  // After either has failed: what there was no block for.
  [[nodiscard]] Bytes missing_bytes() const { return missing_bytes_; }

  // Of the last PlaceRun().
  [[nodiscard]] std::span<const Made> made() const { return made_; }
  [[nodiscard]] PieceIdx workspace() const { return workspace_; }

  // `t` leaves the pool.
  void Drop(TensorIdx t, StepKind kind);

  // Seconds per byte below which an operation is cheap; 0 without partition.
  [[nodiscard]] double density_threshold() const { return density_threshold_; }

 private:
  enum class Room { kMade, kByTakingOver, kNowhere };

  bool PlaceOutputs(StepKind kind, OpIdx op);
  bool PlaceWorkspace(OpIdx op);
  Room MakeRoom(Bytes bytes, TensorIdx consumable);
  TensorIdx FindDeadInput(StepKind kind, OpIdx op, TensorIdx output) const;
  TensorIdx FindConsumableInput(OpIdx op, TensorIdx output);
  bool IsLastReader(TensorIdx input) const;
  void Place(TensorIdx output, PieceIdx piece);
  void TakeOver(Made& made, TensorIdx input, StepKind drop_kind);
  Side SideOf(OpIdx op, bool is_evictable) const;

  TensorState& tensor(TensorIdx t) { return state_.tensors[At(t)]; }
  const TensorState& tensor(TensorIdx t) const { return state_.tensors[At(t)]; }

  const Graph& graph_;
  State& state_;
  Policy& policy_;
  Recorder& recorder_;
  const bool partitions_;
  const bool copies_on_write_;
  const bool consumes_inputs_;  // Recomputable in-place.
  double density_threshold_ = 0;
  std::vector<Made> made_;
  PieceIdx workspace_ = kNone;
  Bytes missing_bytes_ = 0;
};

}  // namespace coop

#endif  // COOP_CORE_ONLINE_PLACER_H_
