#include "core/search/bytes_above.h"

#include <algorithm>
#include <set>

namespace coop {

std::vector<Bytes> BytesAbove(const Graph& graph, const Schedule& schedule,
                              Bytes capacity) {
  std::vector<Bytes> above(At(graph.num_ops()) + 1, 0);
  std::vector<Bytes> of_tensor(At(graph.num_tensors()), 0);
  std::set<TensorIdx> too_high;  // In use, and ending above the capacity.
  const auto place = [&](TensorIdx t, Offset offset) {
    of_tensor[At(t)] =
        offset + RoundUp(graph.bytes(t), schedule.alignment) - capacity;
    if (of_tensor[At(t)] > 0) too_high.insert(t);
  };
  for (const auto& [t, offset] : schedule.initial_placements) place(t, offset);
  size_t placement = 0;
  Position position = 0;
  for (int64_t step = 0; step < std::ssize(schedule.steps); ++step) {
    const auto& [kind, index] = schedule.steps[At(step)];
    if (kind == StepKind::kEvict || kind == StepKind::kFree) {
      too_high.erase(index);
      continue;
    }
    for (; placement < schedule.placements.size() &&
           schedule.placements[placement].step == step;
         ++placement) {
      place(schedule.placements[placement].tensor,
            schedule.placements[placement].offset);
    }
    for (const TensorIdx t : too_high) {
      above[At(position)] = std::max(above[At(position)], of_tensor[At(t)]);
    }
    if (kind == StepKind::kCompute) position = index + 1;
  }
  return above;
}

}  // namespace coop
