#include "fuzz.h"

#include <algorithm>
#include <cstdio>
#include <utility>
#include <vector>

#include "core/graph/graph.h"
#include "core/search/gaps.h"
#include "core/search/rollout.h"
#include "core/search/splits.h"
#include "random_graph.h"

namespace coop {

bool FuzzSplits(uint64_t seed) {
  Random random(seed);
  const Graph graph(ProgramBuilder(random).Build());
  GapTable gaps(graph);
  Decisions decisions = gaps.KeepAll();
  for (GapIdx gap = 0; gap < gaps.size(); ++gap) {
    if (gaps.may_drop(gap) && random.Chance(50)) {
      decisions[At(gap)] = static_cast<uint8_t>(random.Between(0, 3));
    }
  }
  constexpr Bytes kAlignment = 64;
  const auto roll_out = [&](const GapTable& table, const Decisions& decided) {
    Rollout rollout(graph, table, kAlignment);
    rollout.Run(decided);
    std::vector<OpIdx> ran;
    for (const Execution& e : rollout.executions()) ran.push_back(e.op);
    return std::pair(ran, rollout.peak_bytes());
  };
  const auto expected = roll_out(gaps, decisions);
  for (int round = 0; round < 3; ++round) {
    std::vector<Split> splits = FindSplits(graph, gaps, decisions);
    if (splits.empty()) {
      splits.assign(gaps.splits().begin(), gaps.splits().end());
    }
    for (GapIdx gap = 0; gap < gaps.size(); ++gap) {
      const Position end = std::min(gaps.end(gap), graph.num_ops() - 1);
      if (end - gaps.begin(gap) < 2 || !random.Chance(30)) continue;
      splits.push_back(
          {gaps.tensor(gap), random.Between(gaps.begin(gap) + 1, end - 1)});
    }
    std::ranges::sort(splits);
    splits.erase(std::ranges::unique(splits).begin(), splits.end());
    const GapTable finer(graph, splits);
    decisions = finer.Refine(gaps, decisions);
    gaps = finer;
    if (roll_out(gaps, decisions) != expected) {
      std::fprintf(stderr, "splits seed %llu: another plan in round %d\n",
                   static_cast<unsigned long long>(seed), round);
      return false;
    }
  }
  return true;
}

}  // namespace coop
