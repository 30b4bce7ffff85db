#include "core/search/splits.h"

#include <algorithm>

#include "core/search/rollout.h"

namespace coop {

std::vector<Split> FindSplits(const Graph& graph, const GapTable& gaps,
                              const Decisions& decisions) {
  // Sizes make no difference to what runs when.
  Rollout rollout(graph, gaps, 1);
  rollout.Run(decisions);
  // By tensor: where it was read last, if that was by a recomputation.
  std::vector<Position> read_at(At(graph.num_tensors()), kNone);
  std::vector<Split> found;
  for (const auto& [version, reader] : rollout.reads()) {
    if (reader >= std::ssize(rollout.executions())) continue;
    const TensorIdx t = rollout.versions()[At(version)].tensor;
    const auto& [op, position, is_recompute] = rollout.executions()[At(reader)];
    const Position before = read_at[At(t)];
    if (before != kNone && before < position) {
      const GapIdx gap = gaps.at(t, before);
      if (gaps.may_drop(gap) && gaps.end(gap) > before &&
          position <= gaps.end(gap)) {
        found.push_back({t, before});
      }
    }
    read_at[At(t)] = is_recompute ? position : kNone;
  }
  if (found.empty()) return found;
  // Evenly fewer, if they are too many.
  const size_t stride = 1 + found.size() / (At(gaps.size()) + 1);
  std::vector<Split> splits(gaps.splits().begin(), gaps.splits().end());
  for (size_t i = 0; i < found.size(); i += stride) splits.push_back(found[i]);
  std::ranges::sort(splits);
  const auto equal = std::ranges::unique(splits);
  splits.erase(equal.begin(), equal.end());
  return splits;
}

}  // namespace coop
