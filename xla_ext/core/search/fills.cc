#include "core/search/fills.h"

#include <algorithm>

namespace coop {

FillFinder::FillFinder(const Graph& graph, const GapTable& gaps,
                       const Rollout& rollout)
    : graph_(graph),
      gaps_(gaps),
      rollout_(rollout),
      fill_of_(At(gaps.size()), kNone) {}

std::span<const Fill> FillFinder::Find(const Decisions& decisions) {
  for (const Fill& fill : fills_) fill_of_[At(fill.gap)] = kNone;
  fills_.clear();
  present_.assign(At(graph_.num_tensors()), kNone);
  const auto versions = rollout_.versions();
  for (VersionIdx v = 0; v < std::ssize(versions); ++v) {
    const auto& [t, made, last_read, expires, takes_over] = versions[At(v)];
    const VersionIdx before = present_[At(t)];
    present_[At(t)] = v;
    if (made < 0 || before == kNone) continue;
    const Execution& execution = rollout_.executions()[At(made)];
    if (!execution.is_recompute) continue;
    GapIdx gap = gaps_.at(t, execution.position);
    // To keep it behind a split is no use where it is missing before.
    while (decisions[At(gap)] == kKeep && gaps_.begins_with_split(gap)) --gap;
    if (decisions[At(gap)] == kKeep) continue;
    int64_t& fill = fill_of_[At(gap)];
    if (fill == kNone) {
      fill = std::ssize(fills_);
      const Version& kept = versions[At(before)];
      const ExecIdx from = std::max(kept.made, kept.last_read);
      fills_.push_back({.gap = gap,
                        .from = from,
                        .to = made,
                        .made = rollout_.PositionOf(kept.made),
                        .last_used = rollout_.PositionOf(from)});
    }
    fills_[At(fill)].to = made;
    fills_[At(fill)].seconds += graph_.seconds(execution.op);
  }
  return fills_;
}

}  // namespace coop
