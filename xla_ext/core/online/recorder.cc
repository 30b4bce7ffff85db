#include "core/online/recorder.h"

#include <algorithm>
#include <utility>

namespace coop {

Recorder::Recorder(const State& state, Bytes capacity, bool copy_on_write)
    : state_(state) {
  schedule_.capacity = capacity;
  schedule_.alignment = state.pool.alignment();
  schedule_.copy_on_write = copy_on_write;
}

void Recorder::RecordInputs() {
  const Graph& graph = state_.graph;
  for (TensorIdx t = 0; t < graph.num_tensors(); ++t) {
    if (graph.producer(t) != kNone || graph.is_external(t)) continue;
    const Offset offset = OffsetOf(state_.tensors[At(t)].piece);
    schedule_.initial_placements.push_back({t, offset});
  }
  RecordLiveBytes();
}

void Recorder::RecordRun(StepKind kind, OpIdx op, std::span<const Made> made,
                         PieceIdx workspace) {
  for (const Made& output : made) {
    if (output.taken_over != kNone) {
      RecordDrop(output.taken_over, output.drop_kind);
    }
  }
  const int64_t step = std::ssize(schedule_.steps);
  schedule_.steps.push_back({kind, op});
  for (const Made& output : made) {
    const PieceIdx piece = state_.tensors[At(output.tensor)].piece;
    schedule_.placements.push_back(
        {step, output.tensor, OffsetOf(piece), output.taken_over});
  }
  if (workspace != kNone) {
    schedule_.workspaces.push_back({step, OffsetOf(workspace)});
  }
  RecordLiveBytes();
  Statistics& statistics = schedule_.statistics;
  const Seconds seconds = state_.graph.seconds(op);
  if (kind == StepKind::kCompute) {
    statistics.compute_seconds += seconds;
  } else {
    statistics.recompute_seconds += seconds;
    ++statistics.recomputations;
  }
}

void Recorder::RecordDrop(TensorIdx t, StepKind kind) {
  schedule_.steps.push_back({kind, t});
  if (kind == StepKind::kEvict) ++schedule_.statistics.forced_evictions;
  if (kind == StepKind::kFree && state_.graph.is_evictable(t)) {
    ++schedule_.statistics.eager_evictions;
  }
}

// While an operation runs: what made room for it is gone by then.
void Recorder::RecordLiveBytes() {
  const Pool& pool = state_.pool;
  schedule_.statistics.max_live_bytes =
      std::max(schedule_.statistics.max_live_bytes,
               pool.capacity() - pool.free_bytes());
}

Schedule Recorder::Finish() && {
  schedule_.statistics.peak_bytes = state_.pool.peak_bytes();
  SummariseEvents(schedule_.events, schedule_.capacity, schedule_.statistics);
  return std::move(schedule_);
}

}  // namespace coop
