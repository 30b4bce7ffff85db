#include "core/search/repair.h"

#include <algorithm>
#include <cmath>

namespace coop {
namespace {

// Every repair round applies at most this part of the cuts found before they
// are priced again: one changes the price of others.
constexpr int64_t kCutsPerRound = 24;
// How often a repair that is stuck may keep something that it had dropped.
constexpr int kMostUnblocked = 200;
// A value is found worth keeping in rounds: what is kept changes what is made.
constexpr int kFillRounds = 4;
// What a repair that finishes may take beyond the effort: a second or so, and
// some rollouts of a long program.
constexpr int64_t kOverdraft = 20'000'000;
constexpr int64_t kOverdraftPerOp = 200;
// What prices may ask for, in the time of one execution that is rolled out.
constexpr int64_t kLookupsPerEffort = 3;

}  // namespace

Repairer::Repairer(const Graph& graph, const GapTable& gaps, Bytes capacity,
                   const SearchOptions& options, RandomChoice& random)
    : graph_(graph),
      gaps_(gaps),
      capacity_(capacity),
      preferred_(
          std::min(capacity, options.preferred_bytes.value_or(capacity))),
      reserved_(options.reserved),
      needs_(FindNeeds(graph, options.common.alignment)),
      effort_(options.effort),
      least_effort_(-kOverdraft - kOverdraftPerOp * graph.num_ops()),
      deadline_(options.deadline),
      most_lookups_(options.most_lookups),
      rollout_(graph, gaps, options.common.alignment),
      cuts_(graph, gaps, rollout_),
      fills_(graph, gaps, rollout_),
      random_(random),
      touched_(At(graph.num_tensors()), 0),
      barred_(At(gaps.size()), 0),
      reached_(At(graph.num_tensors()), 0) {
  for (OpIdx op = 0; op < graph.num_ops(); ++op) {
    program_seconds_ += graph.seconds(op);
  }
  most_seconds_ = (options.most_overhead - 1) * program_seconds_;
}

bool Repairer::Evaluate(SearchPlan& plan, Seconds limit) {
  const bool finished = RollOut(plan.decisions, std::min(limit, most_seconds_));
  effort_ -= std::ssize(rollout_.executions()) + 1;
  if (deadline_.IsOver()) effort_ = std::min(effort_, least_effort_ - 1);
  if (!finished) return false;
  plan.recompute_seconds = rollout_.recompute_seconds();
  plan.peak_bytes = rollout_.peak_bytes();
  MeasureRoom();
  plan.bytes_above = std::max<Bytes>(0, plan.peak_bytes - capacity_);
  for (const Bytes room : room_) {
    plan.bytes_above = std::max(plan.bytes_above, -room);
  }
  has_fit_ |= plan.IsFeasible();
  return true;
}

// A plan that was repaired is filled up next, and what was filled up again: the last
// rollout is often that of the same decisions.
bool Repairer::RollOut(const Decisions& decisions, Seconds limit) {
  if (is_rolled_out_ && decisions == rolled_out_ &&
      rollout_.recompute_seconds() <= limit) {
    return true;
  }
  is_rolled_out_ = rollout_.Run(decisions, limit);
  if (is_rolled_out_) rolled_out_ = decisions;
  return is_rolled_out_;
}

// The bytes below what is preferred, or needed, by execution of the rollout.
void Repairer::MeasureRoom() {
  const auto live = rollout_.live_bytes();
  const auto executions = rollout_.executions();
  room_.resize(live.size());
  for (size_t e = 0; e < live.size(); ++e) {
    Bytes limit = preferred_;
    if (live[e] > limit && limit < capacity_) {
      const auto& [op, position, _] = executions[e];
      limit = std::clamp(needs_.At(op, position), limit, capacity_);
    }
    room_[e] = limit - live[e];
    if (!reserved_.empty()) room_[e] -= reserved_[At(executions[e].position)];
  }
}

std::vector<Bytes> Repairer::PartOfRoom(double part) const {
  std::vector<Bytes> least(At(graph_.num_ops()) + 1, capacity_);
  const auto live = rollout_.live_bytes();
  const auto executions = rollout_.executions();
  for (size_t e = 0; e < live.size(); ++e) {
    Bytes& room = least[At(executions[e].position)];
    room = std::min(room, capacity_ - live[e]);
  }
  for (Bytes& room : least) {
    room = static_cast<Bytes>(part * static_cast<double>(room));
  }
  return least;
}

bool Repairer::Repair(SearchPlan& plan, Seconds limit, double noise,
                      bool finishes) {
  int num_unblocked = 0;
  while (Evaluate(plan, limit)) {
    if (plan.IsFeasible()) return true;
    const int64_t lookups_before = cuts_.lookups();
    // A price is an estimate: what other cuts make again may be there by then.
    const auto found = cuts_.Find(plan.decisions, room_, limit);
    // Places for early runs make for many prices.
    if (gaps_.has_early_runs()) {
      effort_ -= (cuts_.lookups() - lookups_before) / kLookupsPerEffort;
    }
    if (!has_fit_) {
      lookups_ += cuts_.lookups() - lookups_before;
      lookups_ += std::ssize(rollout_.reads());
      lookups_ += kLookupsPerEffort * std::ssize(rollout_.executions());
      if (lookups_ > most_lookups_) effort_ = least_effort_ - 1;
    }
    effort_ -= std::ssize(rollout_.reads());
    if (effort_ < (finishes ? least_effort_ : 0)) return false;
    if (Apply(plan, found, noise)) continue;
    if (cuts_.has_too_dear()) return false;
    if (++num_unblocked > kMostUnblocked || !Unblock(plan)) return false;
  }
  return false;
}

// Where nothing else can be dropped, an operation runs again that needs too
// much by itself. Keeps one value on the way from it to what asked for it, so
// that it need not run, and bars it from being dropped in this repair. False
// if the operation does not run again, or all values on the way are kept.
bool Repairer::Unblock(SearchPlan& plan) {
  const auto least = std::ranges::min_element(room_);
  if (least == room_.end() || *least >= 0) return false;  // It is the inputs.
  const auto worst = least - room_.begin();
  const auto executions = rollout_.executions();
  const auto [op, position, is_recompute] = executions[At(worst)];
  if (!is_recompute) return false;
  ++walk_;
  for (const TensorIdx t : graph_.outputs(op)) reached_[At(t)] = walk_;
  GapIdx kept = kNone;
  Bytes kept_bytes = 0;
  const auto consider = [&](TensorIdx t) {
    if (!gaps_.has_gaps(t)) return;
    const GapIdx gap = gaps_.at(t, position);
    if (plan.decisions[At(gap)] == kKeep) return;
    // Of the small ones the one that is nearest to who asked.
    if (kept != kNone && rollout_.Size(t) > kept_bytes) return;
    kept = gap;
    kept_bytes = rollout_.Size(t);
  };
  for (const TensorIdx t : graph_.outputs(op)) consider(t);
  for (ExecIdx e = worst + 1;
       e < std::ssize(executions) && executions[At(e)].is_recompute &&
       executions[At(e)].position == position;
       ++e) {
    const OpIdx reader = executions[At(e)].op;
    const bool depends =
        std::ranges::any_of(graph_.inputs(reader), [&](TensorIdx t) {
          return reached_[At(t)] == walk_;
        });
    if (!depends) continue;
    for (const TensorIdx t : graph_.outputs(reader)) {
      reached_[At(t)] = walk_;
      consider(t);
    }
  }
  if (kept == kNone) return false;
  for (;; --kept) {
    plan.decisions[At(kept)] = kKeep;
    Bar(kept);
    if (!gaps_.begins_with_split(kept)) return true;
  }
}

std::span<const Cut> Repairer::KeptInTheWay(const SearchPlan& plan) {
  Bytes least = capacity_;
  for (const Fill& fill : Recomputed(plan)) {
    least = std::min(least, rollout_.Size(gaps_.tensor(fill.gap)));
  }
  std::vector<Bytes> room = room_;
  for (Bytes& bytes : room) bytes = bytes < least ? -capacity_ : 0;
  const int64_t lookups_before = cuts_.lookups();
  const auto found = cuts_.Find(plan.decisions, room);
  effort_ -= (cuts_.lookups() - lookups_before) / kLookupsPerEffort;
  return found;
}

// False if there is no cut that may be applied.
bool Repairer::Apply(SearchPlan& plan, std::span<const Cut> found,
                     double noise) {
  const double least_price =
      1e-6 * program_seconds_ / static_cast<double>(graph_.num_ops() + 1);
  ranked_.clear();
  for (int64_t i = 0; i < std::ssize(found); ++i) {
    if (IsBarred(found[At(i)].gap)) continue;
    double score = (found[At(i)].seconds + least_price) / found[At(i)].relief;
    if (noise > 0) score *= std::exp(noise * (2 * random_.Uniform() - 1));
    ranked_.emplace_back(score, i);
  }
  if (ranked_.empty()) return false;
  const int64_t most = 1 + std::ssize(found) / kCutsPerRound;
  std::ranges::partial_sort(
      ranked_, ranked_.begin() + std::min(4 * most, std::ssize(ranked_)));
  stretches_.Index(room_);
  ++round_;
  int64_t num_applied = 0;
  for (int64_t i = 0; i < std::min(4 * most, std::ssize(ranked_)); ++i) {
    const Cut& cut = found[At(ranked_[At(i)].second)];
    const TensorIdx t = gaps_.tensor(cut.gap);
    if (num_applied > 0 && touched_[At(t)] == round_) continue;
    const bool relieves =
        stretches_.Relieve(cut.from, cut.to, rollout_.Size(t));
    if (num_applied > 0 && !relieves) continue;
    plan.decisions[At(cut.gap)] = cut.decision;
    touched_[At(t)] = round_;
    if (++num_applied == most) break;
    for (const TensorIdx other : cuts_.Touched(cut)) {
      touched_[At(other)] = round_;
    }
  }
  return true;
}

void Repairer::FillUp(SearchPlan& plan, double noise) {
  for (int round = 0; round < kFillRounds && effort_ > 0; ++round) {
    if (!Evaluate(plan)) return;
    const auto found = fills_.Find(plan.decisions);
    effort_ -= std::ssize(rollout_.versions());
    ranked_.clear();
    for (int64_t i = 0; i < std::ssize(found); ++i) {
      if (IsBarred(found[At(i)].gap)) continue;
      double score =
          -found[At(i)].seconds /
          static_cast<double>(rollout_.Size(gaps_.tensor(found[At(i)].gap)));
      if (noise > 0) score *= std::exp(noise * (2 * random_.Uniform() - 1));
      ranked_.emplace_back(score, i);
    }
    std::ranges::sort(ranked_);
    stretches_.Index(room_);
    SearchPlan filled{.decisions = plan.decisions};
    bool has_filled = false;
    for (const auto& [_, i] : ranked_) {
      const Fill& fill = found[At(i)];
      const Bytes bytes = rollout_.Size(gaps_.tensor(fill.gap));
      if (!stretches_.Take(fill.from, fill.to, bytes)) continue;
      Keep(filled, fill);
      has_filled = true;
    }
    if (!has_filled) return;
    if (!Evaluate(filled, plan.recompute_seconds)) return;
    if (!filled.IsBetterThan(plan)) return;
    plan = std::move(filled);
  }
}

void Repairer::Keep(SearchPlan& plan, const Fill& fill, bool bars) {
  GapIdx gap = fill.gap;
  plan.decisions[At(gap)] = kKeep;
  if (bars) Bar(gap);
  while (gaps_.begins_with_split(gap) && gaps_.begin(gap) >= fill.last_used) {
    --gap;
    const bool is_made_here = fill.made > gaps_.begin(gap);
    plan.decisions[At(gap)] |= is_made_here ? kKeepToEnd : kKeep;
    if (bars) Bar(gap);
  }
}

}  // namespace coop
