// Union-find over evicted tensors with the sum of each component.
#ifndef COOP_CORE_ONLINE_DISJOINT_SET_H_
#define COOP_CORE_ONLINE_DISJOINT_SET_H_

#include <algorithm>
#include <vector>

#include "core/base/types.h"

namespace coop {

// Components only grow. A member that leaves (its tensor was recomputed) takes
// its own share out of the sum but its node stays: an approximate split, as in
// DTR and Coop, whose components may hold together what is no longer connected.
class DisjointSet {
 public:
  using Node = int64_t;

  Node Add(Seconds seconds) {
    parent_.push_back(std::ssize(parent_));
    sum_.push_back(seconds);
    return parent_.back();
  }

  void Merge(Node a, Node b) {
    a = Root(a);
    b = Root(b);
    if (a == b) return;
    parent_[At(b)] = a;
    sum_[At(a)] += sum_[At(b)];
  }

  void Leave(Node node, Seconds seconds) {
    Seconds& sum = sum_[At(Root(node))];
    sum = std::max(0.0, sum - seconds);
  }

  // Path halving: the tree flattens as it is walked.
  Node Root(Node node) {
    while (parent_[At(node)] != node) {
      parent_[At(node)] = parent_[At(parent_[At(node)])];
      node = parent_[At(node)];
    }
    return node;
  }

  Seconds Sum(Node node) { return sum_[At(Root(node))]; }

 private:
  std::vector<Node> parent_;
  std::vector<Seconds> sum_;  // Of the component, valid at roots.
};

}  // namespace coop

#endif  // COOP_CORE_ONLINE_DISJOINT_SET_H_
