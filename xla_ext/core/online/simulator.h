// Simulates a run of the program in the pool; the schedule is its record.
#ifndef COOP_CORE_ONLINE_SIMULATOR_H_
#define COOP_CORE_ONLINE_SIMULATOR_H_

#include "core/base/types.h"
#include "core/graph/graph.h"
#include "core/online/options.h"
#include "core/schedule/schedule.h"

namespace coop {

// A schedule for `graph` in a pool of `capacity` bytes. For every operation in
// order:
//
//   1. inputs that are missing are recomputed, in the order of RecomputeOrder.
//      Everything resident that this work reads is pinned until its last read
//      in it, and so is everything it makes; then what the program has let go
//      of is freed at once and the rest stays, evictable;
//   2. outputs and then the workspace get their blocks. If none is free, the
//      policy evicts;
//   3. the workspace is freed, then what the program releases.
//
// At the end the outputs are brought back one by one, each pinned from then on.
//
// Deterministic but for the times in Event and Statistics. The schedule is
// valid by construction; Validate checks it independently.
//
// With `steps_left`, it ends as failed (kEffort) once so many steps are done,
// operations run and tensors looked at, and says what is left of them.
[[nodiscard]] PlanResult Simulate(const Graph& graph, Bytes capacity,
                                  const OnlineOptions& options,
                                  int64_t* steps_left = nullptr);

}  // namespace coop

#endif  // COOP_CORE_ONLINE_SIMULATOR_H_
