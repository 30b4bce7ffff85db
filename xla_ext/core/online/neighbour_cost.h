// The cost of recomputing a tensor, evicted neighbours included.
#ifndef COOP_CORE_ONLINE_NEIGHBOUR_COST_H_
#define COOP_CORE_ONLINE_NEIGHBOUR_COST_H_

#include <vector>

#include "core/base/types.h"
#include "core/graph/graph.h"
#include "core/online/disjoint_set.h"

namespace coop {

// The tensor's own seconds (its producer's), plus for every evicted input of
// the producer and every evicted sibling output the larger of that neighbour's
// own seconds and the sum of its component of evicted tensors. A tensor joins
// the components of its evicted inputs and siblings when it is evicted.
// Consumers do not count and a component met twice counts twice: as in Coop's
// public code, which uses the same cost for DTE.
class NeighbourCost {
 public:
  explicit NeighbourCost(const Graph& graph);

  void OnEvict(TensorIdx t);
  void OnMake(TensorIdx t);
  [[nodiscard]] Seconds Of(TensorIdx t);

 private:
  [[nodiscard]] bool IsEvicted(TensorIdx t) const {
    return node_[At(t)] != kNone;
  }
  [[nodiscard]] Seconds Own(TensorIdx t) const;
  [[nodiscard]] Seconds ComponentOf(TensorIdx t);
  void CountNeighbours(TensorIdx t, int64_t change);

  const Graph& graph_;
  DisjointSet components_;
  std::vector<DisjointSet::Node> node_;  // kNone: not evicted.
  // Evicted inputs plus outputs, by operation: 0 is the common, quick case.
  std::vector<int64_t> num_evicted_;
};

}  // namespace coop

#endif  // COOP_CORE_ONLINE_NEIGHBOUR_COST_H_
