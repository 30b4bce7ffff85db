#include "core/search/gaps.h"

#include <algorithm>
#include <utility>

namespace coop {

GapTable::GapTable(const Graph& graph, std::span<const Split> splits)
    : splits_(splits.begin(), splits.end()),
      first_(At(graph.num_tensors()), kNone),
      last_(At(graph.num_tensors()), kNone) {
  std::ranges::sort(splits_);
  const auto equal = std::ranges::unique(splits_, [](auto& a, auto& b) {
    return a.tensor == b.tensor && a.position == b.position;
  });
  splits_.erase(equal.begin(), equal.end());
  auto split = splits_.begin();
  for (TensorIdx t = 0; t < graph.num_tensors(); ++t) {
    if (graph.is_external(t) || graph.is_pinned(t) || graph.bytes(t) == 0) {
      continue;
    }
    first_[At(t)] = size();
    Position begin = graph.producer(t);
    bool from_split = false;
    bool is_behind = false;
    const auto add = [&](Position end, bool may_drop, bool to_split) {
      tensor_.push_back(t);
      begin_.push_back(begin);
      end_.push_back(end);
      begins_with_split_.push_back(from_split);
      is_behind_.push_back(is_behind);
      may_drop_.push_back(may_drop);
      begin = end;
      from_split = to_split;
    };
    const auto add_up_to = [&](Position end) {
      // Asked for up to `end`, or on behalf of a tensor whose deadline is no
      // later than this one's: see DeriveDeadlines.
      const bool may_drop = graph.has_way_back(t) &&
                            (end == kNever || end <= graph.deadline(t));
      for (; split != splits_.end() && split->tensor == t &&
             split->position < end;
           ++split) {
        add(split->position, may_drop, true);
      }
      add(end, may_drop, false);
    };
    for (const OpIdx use : graph.consumers(t)) add_up_to(use);
    if (graph.is_output(t)) add_up_to(graph.end());
    is_behind = true;
    add_up_to(kNever);
    last_[At(t)] = size() - 1;
  }
  std::vector<std::pair<int64_t, TensorIdx>> entries;
  for (const Split& split : splits_) {
    entries.emplace_back(split.position, split.tensor);
    has_early_runs_ |= split.is_for_early_run;
  }
  split_at_ = Csr<TensorIdx>(graph.num_ops(), entries);
  const auto with_gaps = [&](auto&& tensors_of) {
    entries.clear();
    for (OpIdx op = 0; op < graph.num_ops(); ++op) {
      for (const TensorIdx t : tensors_of(op)) {
        if (has_gaps(t)) entries.emplace_back(op, t);
      }
    }
    return Csr<TensorIdx>(graph.num_ops(), entries);
  };
  inputs_ = with_gaps([&](OpIdx op) { return graph.inputs(op); });
  outputs_ = with_gaps([&](OpIdx op) { return graph.outputs(op); });
}

GapIdx GapTable::at(TensorIdx t, Position position) const {
  const auto begin = end_.begin();
  return std::lower_bound(begin + first_[At(t)], begin + last_[At(t)],
                          position) -
         begin;
}

std::span<const TensorIdx> GapTable::split_at(Position position) const {
  return split_at_[position];
}

Decisions GapTable::KeepAll() const {
  Decisions decisions(At(size()), kKeep);
  for (GapIdx gap = 0; gap < size(); ++gap) {
    if (is_behind_last_use(gap) && may_drop(gap)) decisions[At(gap)] = 0;
  }
  return decisions;
}

Decisions GapTable::Refine(const GapTable& coarser,
                           const Decisions& decisions) const {
  Decisions refined(At(size()));
  GapIdx from = 0;
  for (GapIdx gap = 0; gap < size(); ++gap) {
    if (tensor(gap) != coarser.tensor(from) || end(gap) > coarser.end(from)) {
      ++from;
    }
    uint8_t decision = decisions[At(from)];
    // A value made again in the part before stays to the end.
    if (decision == kKeepToEnd && begin(gap) > coarser.begin(from)) {
      decision = kKeep;
    }
    if (decision == kMakeAtEnd && end(gap) != coarser.end(from)) decision = 0;
    refined[At(gap)] = decision;
  }
  return refined;
}

}  // namespace coop
