#include "core/search/ruin.h"

#include <algorithm>

#include "core/search/fills.h"

namespace coop {
namespace {

// The picks among all gaps for one that is kept.
constexpr int kDropAttempts = 16;
// In four of so many times what is kept behind its last use and not read is varied.
constexpr int64_t kWaysToVary = 8;
// Of what is recomputed, what is undone at least to begin anew.
constexpr double kLeastShareOfMuch = 0.3;

}  // namespace

bool Ruiner::Ruin(SearchPlan& plan) {
  if (!repairer_.Evaluate(plan)) return false;
  const auto found = repairer_.Recomputed(plan);
  if (found.empty()) return false;
  VaryUnread(plan);
  repairer_.Begin();
  const bool bars = random_.Below(2) == 0;
  const int64_t size = std::ssize(found);
  const int64_t pick = random_.Below(size);
  switch (random_.Below(5)) {
    case 0:  // One gap.
      repairer_.Keep(plan, found[At(pick)], bars);
      break;
    case 4:  // The other way round: drops something, for others to be kept.
      Drop(plan);
      break;
    case 1: {  // Neighbours in time.
      const int64_t reach = 1 + random_.Below(8);
      for (int64_t i = std::max<int64_t>(0, pick - reach);
           i < std::min(size, pick + reach); ++i) {
        repairer_.Keep(plan, found[At(i)], bars);
      }
      break;
    }
    case 2: {  // Some of all.
      const double share = 0.02 + 0.1 * random_.Uniform();
      for (const Fill& fill : found) {
        if (random_.Uniform() < share) repairer_.Keep(plan, fill, bars);
      }
      break;
    }
    default: {  // The dearer of a few; another way of keeping it.
      int64_t dearest = pick;
      for (int i = 0; i < 4; ++i) {
        const int64_t other = random_.Below(size);
        if (found[At(other)].seconds > found[At(dearest)].seconds) {
          dearest = other;
        }
      }
      constexpr uint8_t kWays[] = {kKeepInGap, kKeepToEnd};
      const int64_t way = random_.Below(3);
      if (way == 2) {
        repairer_.Keep(plan, found[At(dearest)]);
      } else {
        plan.decisions[At(found[At(dearest)].gap)] = kWays[way];
      }
      break;
    }
  }
  return true;
}

// Whether a value is kept behind its last use changes nothing where no recomputation
// reads it there, but the prices of cuts: one that is there is held, one that is not is
// made again. Often the dear ones have to be there and the cheap ones not.
void Ruiner::VaryUnread(SearchPlan& plan) {
  enum { kDropAll, kKeepAll, kKeepSome, kKeepDear, kNumWays };
  const int64_t way = random_.Below(kWaysToVary);
  if (way >= kNumWays) return;
  MarkRead();
  const Seconds dear = SecondsOf(random_.Below(gaps_.size()));
  for (GapIdx gap = 0; gap < gaps_.size(); ++gap) {
    if (!gaps_.is_behind_last_use(gap) || is_read_[At(gap)] != 0) continue;
    if (!gaps_.may_drop(gap)) continue;
    bool keeps = way == kKeepAll;
    if (way == kKeepSome) keeps = random_.Below(2) == 0;
    if (way == kKeepDear) keeps = SecondsOf(gap) >= dear;
    plan.decisions[At(gap)] = keeps ? kKeep : 0;
  }
}

// The gaps in which the rollout reads their value.
void Ruiner::MarkRead() {
  const Rollout& rollout = repairer_.rollout();
  is_read_.assign(At(gaps_.size()), 0);
  for (const auto& [version, reader] : rollout.reads()) {
    const TensorIdx t = rollout.versions()[At(version)].tensor;
    is_read_[At(gaps_.at(t, rollout.PositionOf(reader)))] = 1;
  }
}

// Of the operation that makes the value of `gap`.
Seconds Ruiner::SecondsOf(GapIdx gap) const {
  const OpIdx producer = graph_.producer(gaps_.tensor(gap));
  return producer == kNone ? 0 : graph_.seconds(producer);
}

bool Ruiner::RuinMuch(SearchPlan& plan) {
  if (!repairer_.Evaluate(plan)) return false;
  repairer_.Begin();
  const double share = kLeastShareOfMuch +
                       (1 - kLeastShareOfMuch) * random_.Uniform();
  for (const Fill& fill : repairer_.Recomputed(plan)) {
    if (random_.Uniform() < share) repairer_.Keep(plan, fill);
  }
  return true;
}

void Ruiner::Drop(SearchPlan& plan) {
  for (int attempt = 0; attempt < kDropAttempts; ++attempt) {
    const GapIdx gap = random_.Below(gaps_.size());
    if (!gaps_.may_drop(gap) || gaps_.is_behind_last_use(gap)) continue;
    if (plan.decisions[At(gap)] != kKeep) continue;
    plan.decisions[At(gap)] = random_.Below(2) == 0 ? 0 : kKeepToEnd;
    repairer_.Bar(gap);
    return;
  }
}

}  // namespace coop
