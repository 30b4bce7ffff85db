#include "core/gaps.h"

#include <algorithm>

namespace coop {

GapTable::GapTable(const Graph& graph)
    : first_(At(graph.num_tensors()), kNone) {
  for (TensorIdx t = 0; t < graph.num_tensors(); ++t) {
    if (graph.is_external(t) || graph.is_pinned(t) || graph.bytes(t) == 0) {
      continue;
    }
    first_[At(t)] = size();
    const auto add = [&](Position begin, Position end) {
      tensor_.push_back(t);
      begin_.push_back(begin);
      end_.push_back(end);
      // Asked for in this gap, at `end` the latest, or on behalf of a tensor
      // whose deadline is no later than this one's: see DeriveDeadlines.
      may_drop_.push_back(graph.has_way_back(t) &&
                          (end == kNever || end <= graph.deadline(t)));
    };
    Position begin = graph.producer(t);
    for (const OpIdx use : graph.consumers(t)) {
      add(begin, use);
      begin = use;
    }
    if (graph.is_output(t)) {
      add(begin, graph.end());
      begin = graph.end();
    }
    add(begin, kNever);
  }
}

GapIdx GapTable::at(TensorIdx t, Position position) const {
  GapIdx gap = first(t);
  while (end(gap) < position) ++gap;
  return gap;
}

Decisions GapTable::KeepAll() const {
  Decisions decisions(At(size()), kKeep);
  for (GapIdx gap = 0; gap < size(); ++gap) {
    if (end(gap) == kNever && may_drop(gap)) decisions[At(gap)] = 0;
  }
  return decisions;
}

}  // namespace coop
