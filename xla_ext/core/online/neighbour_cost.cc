#include "core/online/neighbour_cost.h"

#include <algorithm>

namespace coop {

NeighbourCost::NeighbourCost(const Graph& graph)
    : graph_(graph),
      node_(At(graph.num_tensors()), kNone),
      num_evicted_(At(graph.num_ops()), 0) {}

Seconds NeighbourCost::Own(TensorIdx t) const {
  return graph_.seconds(graph_.producer(t));
}

Seconds NeighbourCost::ComponentOf(TensorIdx t) {
  return std::max(components_.Sum(node_[At(t)]), Own(t));
}

void NeighbourCost::CountNeighbours(TensorIdx t, int64_t change) {
  num_evicted_[At(graph_.producer(t))] += change;
  for (const OpIdx op : graph_.consumers(t)) num_evicted_[At(op)] += change;
}

void NeighbourCost::OnEvict(TensorIdx t) {
  const OpIdx op = graph_.producer(t);
  const auto node = components_.Add(Own(t));
  if (num_evicted_[At(op)] > 0) {
    for (const TensorIdx input : graph_.inputs(op)) {
      if (IsEvicted(input)) components_.Merge(node_[At(input)], node);
    }
    for (const TensorIdx sibling : graph_.outputs(op)) {
      if (IsEvicted(sibling)) components_.Merge(node_[At(sibling)], node);
    }
  }
  node_[At(t)] = node;
  CountNeighbours(t, 1);
}

void NeighbourCost::OnMake(TensorIdx t) {
  if (!IsEvicted(t)) return;
  components_.Leave(node_[At(t)], Own(t));
  node_[At(t)] = kNone;
  CountNeighbours(t, -1);
}

Seconds NeighbourCost::Of(TensorIdx t) {
  const OpIdx op = graph_.producer(t);
  Seconds cost = graph_.seconds(op);
  if (num_evicted_[At(op)] == 0) return cost;
  for (const TensorIdx input : graph_.inputs(op)) {
    if (IsEvicted(input)) cost += ComponentOf(input);
  }
  for (const TensorIdx sibling : graph_.outputs(op)) {
    if (sibling != t && IsEvicted(sibling)) cost += ComponentOf(sibling);
  }
  return cost;
}

}  // namespace coop
