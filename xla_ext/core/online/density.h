// Cheap or expensive: operations split by cost density.
#ifndef COOP_CORE_ONLINE_DENSITY_H_
#define COOP_CORE_ONLINE_DENSITY_H_

#include "core/base/types.h"
#include "core/graph/graph.h"

namespace coop {

// Seconds per byte that the operation puts into the pool; infinite if none.
[[nodiscard]] double CostDensity(const Graph& graph, OpIdx op);

// An operation is cheap if its density is below this. Otsu's two-class split:
// the cut between the sorted logarithms of the densities, each weighted with
// the bytes made, that maximises the variance between the two classes. The
// threshold is the geometric mean of the densities beside the cut. Operations
// that take no time are cheap whatever the cut. 0 (nothing but those is cheap)
// if all densities are equal.
[[nodiscard]] double DensityThreshold(const Graph& graph);

}  // namespace coop

#endif  // COOP_CORE_ONLINE_DENSITY_H_
