// Splits: positions at which a gap is better decided in two parts.
#ifndef COOP_CORE_SEARCH_SPLITS_H_
#define COOP_CORE_SEARCH_SPLITS_H_

#include <vector>

#include "core/graph/graph.h"
#include "core/search/gaps.h"

namespace coop {

// Behind every recomputation that reads a value within a gap, with more to come
// that reads it there: between the two it need not be decided as before.
// Includes the splits of `gaps`; at most one new split per gap on average.
[[nodiscard]] std::vector<Split> FindSplits(const Graph& graph,
                                            const GapTable& gaps,
                                            const Decisions& decisions);

// Within every gap, for values to be made again before they are read: where there is
// room again, and what they are made from is still there. All positions, or evenly
// fewer of a large graph.
[[nodiscard]] std::vector<Split> SplitsForEarlyRuns(const Graph& graph);

}  // namespace coop

#endif  // COOP_CORE_SEARCH_SPLITS_H_
