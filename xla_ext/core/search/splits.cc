#include "core/search/splits.h"

#include <algorithm>

#include "core/search/rollout.h"

namespace coop {
namespace {

// Places for early runs, in a small graph; in a large one, as many as it has gaps.
constexpr int64_t kMostEarlyRuns = 4'000;

}  // namespace

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

std::vector<Split> SplitsForEarlyRuns(const Graph& graph) {
  const GapTable gaps(graph);
  const auto splits_of = [&](GapIdx gap) -> int64_t {
    if (!gaps.may_drop(gap) || gaps.is_behind_last_use(gap)) return 0;
    if (graph.producer(gaps.tensor(gap)) == kNone) return 0;
    // Behind something for which the value may be missing.
    return std::max<int64_t>(0, gaps.end(gap) - gaps.begin(gap) - 2);
  };
  int64_t num_splits = 0;
  for (GapIdx gap = 0; gap < gaps.size(); ++gap) num_splits += splits_of(gap);
  const int64_t most = std::max(kMostEarlyRuns, gaps.size());
  const int64_t stride = 1 + num_splits / most;
  std::vector<Split> splits;
  int64_t next = 0;
  for (GapIdx gap = 0; gap < gaps.size(); ++gap) {
    const int64_t num = splits_of(gap);
    for (; next < num; next += stride) {
      splits.push_back({gaps.tensor(gap), gaps.begin(gap) + 2 + next, true});
    }
    next -= num;
  }
  return splits;
}

}  // namespace coop
