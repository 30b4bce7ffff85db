// Minimum cut between two nodes of a network with integer capacities.
#ifndef COOP_CORE_LOOPS_MIN_CUT_H_
#define COOP_CORE_LOOPS_MIN_CUT_H_

#include <cstdint>
#include <vector>

#include "core/base/types.h"
#include "core/loops/label_lists.h"

namespace coop {

// Wide enough for products of two numbers of up to 2^61, and sums of them.
__extension__ typedef __int128 Capacity;

// Of edges that no cut may contain. More than all other capacities of a network
// together, which must be fewer.
inline constexpr Capacity kInfiniteCapacity = Capacity{1} << 125;

using NodeIdx = int64_t;

// Push-relabel, from the sink back to the source: an edge is stored against its
// direction, so all that is pushed was the capacity of edges into the sink, which
// is finite; and as soon as no excess can get to the source, the nodes from which
// it could are the source's side of the cut, with no need to make the preflow a
// flow. Nodes are discharged from the highest label; labels are made exact again
// after as much work as that takes. A label that no node has is a gap: from above it
// there is no way to the source, and excess that is stuck there need not climb.
//
// Source: A. V. Goldberg, R. E. Tarjan, "A new approach to the maximum-flow
// problem", 1988; B. V. Cherkassky, A. V. Goldberg, "On implementing the
// push-relabel method for the maximum flow problem", 1997.
class FlowNetwork {
 public:
  static constexpr NodeIdx kSource = 0;
  static constexpr NodeIdx kSink = 1;

  // `num_nodes` counts the source and the sink.
  explicit FlowNetwork(int64_t num_nodes);

  // `capacity` must not be negative.
  void AddEdge(NodeIdx from, NodeIdx to, Capacity capacity);

  // By node, whether it is on the source's side of the minimum cut with the fewest
  // nodes there. There is one such cut, so ties make no difference. No path of
  // infinite edges may lead from the source to the sink. May be called once.
  [[nodiscard]] std::vector<uint8_t> SourceSide();

 private:
  struct Edge {  // Against the direction in which it was added.
    NodeIdx from;
    NodeIdx to;
    Capacity capacity;
  };
  struct Arc {
    NodeIdx to;
    int64_t reverse;
    Capacity left;
  };

  void MakeArcs();
  void Saturate();
  void MakeLabelsExact();
  void Discharge(NodeIdx node);
  void Push(NodeIdx node, Arc& arc);
  void Relabel(NodeIdx node);
  // From there it is one label after the other to the source.
  void CutOffAbove(int64_t gap);
  void Activate(NodeIdx node);

  int64_t num_nodes_;
  std::vector<Edge> edges_;
  // Of node n: arcs_[first_arc_[n], first_arc_[n + 1]), each edge in both
  // directions.
  std::vector<int64_t> first_arc_;
  std::vector<Arc> arcs_;
  std::vector<int64_t> next_arc_;
  std::vector<Capacity> excess_;
  // At most the number of arcs to the source; num_nodes_ if there is no way.
  std::vector<int64_t> label_;
  LabelLists with_label_;  // But the source. No label is left out below one in use.
  // By label: the nodes with excess.
  std::vector<std::vector<NodeIdx>> active_;
  int64_t highest_ = 0;
  std::vector<NodeIdx> queue_;
  int64_t work_ = 0;  // Arcs looked at since labels were exact.
};

}  // namespace coop

#endif  // COOP_CORE_LOOPS_MIN_CUT_H_
