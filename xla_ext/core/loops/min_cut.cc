#include "core/loops/min_cut.h"

#include <algorithm>

namespace coop {

FlowNetwork::FlowNetwork(int64_t num_nodes) : num_nodes_(num_nodes) {}

void FlowNetwork::AddEdge(NodeIdx from, NodeIdx to, Capacity capacity) {
  if (from != to && capacity > 0) edges_.push_back({to, from, capacity});
}

std::vector<uint8_t> FlowNetwork::SourceSide() {
  MakeArcs();
  Saturate();
  MakeLabelsExact();
  const int64_t patience = num_nodes_ + std::ssize(arcs_);
  while (highest_ >= 0) {
    std::vector<NodeIdx>& candidates = active_[At(highest_)];
    if (candidates.empty()) {
      --highest_;
      continue;
    }
    const NodeIdx node = candidates.back();
    candidates.pop_back();
    Discharge(node);
    if (work_ > patience) MakeLabelsExact();
  }
  MakeLabelsExact();
  std::vector<uint8_t> side(At(num_nodes_));
  for (NodeIdx node = 0; node < num_nodes_; ++node) {
    side[At(node)] = label_[At(node)] < num_nodes_;
  }
  return side;
}

void FlowNetwork::MakeArcs() {
  first_arc_.assign(At(num_nodes_) + 1, 0);
  for (const Edge& edge : edges_) {
    ++first_arc_[At(edge.from) + 1];
    ++first_arc_[At(edge.to) + 1];
  }
  for (NodeIdx node = 0; node < num_nodes_; ++node) {
    first_arc_[At(node) + 1] += first_arc_[At(node)];
  }
  next_arc_.assign(first_arc_.begin(), first_arc_.end() - 1);
  arcs_.resize(2 * edges_.size());
  for (const auto& [from, to, capacity] : edges_) {
    const int64_t arc = next_arc_[At(from)]++;
    const int64_t reverse = next_arc_[At(to)]++;
    arcs_[At(arc)] = {to, reverse, capacity};
    arcs_[At(reverse)] = {from, arc, 0};
  }
  edges_.clear();
}

void FlowNetwork::Saturate() {
  excess_.assign(At(num_nodes_), 0);
  for (int64_t i = first_arc_[kSink]; i < first_arc_[kSink + 1]; ++i) {
    Push(kSink, arcs_[At(i)]);
  }
}

// Moves what is left of an arc, or all of the excess, which the sink has no end of.
void FlowNetwork::Push(NodeIdx node, Arc& arc) {
  Capacity moved = arc.left;
  if (node != kSink) {
    moved = std::min(moved, excess_[At(node)]);
    excess_[At(node)] -= moved;
  }
  arc.left -= moved;
  arcs_[At(arc.reverse)].left += moved;
  excess_[At(arc.to)] += moved;
}

void FlowNetwork::MakeLabelsExact() {
  label_.assign(At(num_nodes_), num_nodes_);
  std::ranges::copy(first_arc_.begin(), first_arc_.end() - 1, next_arc_.begin());
  with_label_.Clear(num_nodes_);
  active_.resize(At(num_nodes_));
  for (auto& nodes : active_) nodes.clear();
  highest_ = -1;
  work_ = 0;
  label_[kSource] = 0;
  queue_.assign(1, kSource);
  for (size_t i = 0; i < queue_.size(); ++i) {
    const NodeIdx node = queue_[i];
    for (int64_t k = first_arc_[At(node)]; k < first_arc_[At(node) + 1]; ++k) {
      const auto& [other, reverse, left] = arcs_[At(k)];
      if (label_[At(other)] < num_nodes_) continue;
      if (arcs_[At(reverse)].left == 0) continue;
      label_[At(other)] = label_[At(node)] + 1;
      with_label_.Add(label_[At(other)], other);
      queue_.push_back(other);
      if (excess_[At(other)] > 0) Activate(other);
    }
  }
}

void FlowNetwork::Activate(NodeIdx node) {
  if (node == kSource || node == kSink) return;
  const int64_t label = label_[At(node)];
  active_[At(label)].push_back(node);
  highest_ = std::max(highest_, label);
}

void FlowNetwork::Discharge(NodeIdx node) {
  int64_t& next = next_arc_[At(node)];
  while (excess_[At(node)] > 0 && label_[At(node)] < num_nodes_) {
    if (next == first_arc_[At(node) + 1]) {
      Relabel(node);
      continue;
    }
    Arc& arc = arcs_[At(next)];
    ++work_;
    if (arc.left == 0 || label_[At(node)] != label_[At(arc.to)] + 1) {
      ++next;
      continue;
    }
    if (excess_[At(arc.to)] == 0) Activate(arc.to);
    Push(node, arc);
  }
}

void FlowNetwork::Relabel(NodeIdx node) {
  const int64_t before = label_[At(node)];
  with_label_.Remove(before, node);
  if (with_label_.First(before) == kNone) {
    label_[At(node)] = num_nodes_;
    CutOffAbove(before);
    return;
  }
  int64_t lowest = num_nodes_;
  const int64_t begin = first_arc_[At(node)], end = first_arc_[At(node) + 1];
  for (int64_t i = begin; i < end; ++i) {
    if (arcs_[At(i)].left > 0) {
      lowest = std::min(lowest, label_[At(arcs_[At(i)].to)]);
    }
  }
  work_ += end - begin;
  label_[At(node)] = std::min(lowest + 1, num_nodes_);
  if (label_[At(node)] < num_nodes_) with_label_.Add(label_[At(node)], node);
  next_arc_[At(node)] = begin;
}

void FlowNetwork::CutOffAbove(int64_t gap) {
  for (int64_t label = gap + 1; label < num_nodes_; ++label) {
    NodeIdx node = with_label_.First(label);
    if (node == kNone) return;
    for (; node != kNone; node = with_label_.Next(node)) {
      label_[At(node)] = num_nodes_;
    }
    with_label_.Empty(label);
  }
}

}  // namespace coop
