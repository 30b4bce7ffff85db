// Live bytes: how many a plan may keep alive and still pack into the capacity.
#ifndef COOP_CORE_SEARCH_LIVE_BYTES_H_
#define COOP_CORE_SEARCH_LIVE_BYTES_H_

#include <cstdint>

#include "core/base/types.h"
#include "core/graph/graph.h"
#include "core/search/options.h"
#include "core/search/pool_plans.h"

namespace coop {

// Between what the best plan keeps alive, which packs, and the capacity, by bisection:
// each time a search with the whole effort, packed with all of the effort for that. A
// plan for less room packs more easily and recomputes more, so the best lie where packing
// just succeeds. Nothing is done where the best plan is about as quick as any known.
void SearchLiveBytes(const Graph& graph, Bytes capacity,
                     const PoolSearchOptions& options, uint64_t seed,
                     PoolPlans& plans);

}  // namespace coop

#endif  // COOP_CORE_SEARCH_LIVE_BYTES_H_
