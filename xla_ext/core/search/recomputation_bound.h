// What no schedule can recompute less than.
#ifndef COOP_CORE_SEARCH_RECOMPUTATION_BOUND_H_
#define COOP_CORE_SEARCH_RECOMPUTATION_BOUND_H_

#include "core/base/types.h"
#include "core/graph/graph.h"

namespace coop {

// A lower bound on the seconds of recomputation of every schedule of `graph` in
// `capacity` bytes, each tensor rounded up to `alignment`.
//
// When an operation runs for the first time, a tensor that has been used and
// will be used again is in the pool, or is made again before its next use: once
// at least for every such gap between two uses. What must be missing at every
// operation for the rest to fit is a covering problem, one choice per gap. The
// bound is that of its linear relaxation, approached by Lagrange multipliers of
// the operations (any multipliers give a bound). It knows neither of what the
// recomputations need themselves nor of fragmentation.
//
// `known_seconds` are those of some schedule: how far the bound can go.
// O(operations + gaps) for each of a few hundred to a few thousand rounds.
[[nodiscard]] Seconds RecomputationBound(const Graph& graph, Bytes capacity,
                                         Bytes alignment,
                                         Seconds known_seconds);

}  // namespace coop

#endif  // COOP_CORE_SEARCH_RECOMPUTATION_BOUND_H_
