#include "core/search/search.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "core/search/checkpoints.h"
#include "core/search/fills.h"
#include "core/search/plan.h"
#include "core/search/polish.h"
#include "core/search/random_choice.h"
#include "core/search/repair.h"
#include "core/search/ruin.h"
#include "core/search/splits.h"

namespace coop {
namespace {

// How far, relatively, the repair of a plan that begins anew may be worse.
constexpr double kMostWorseAnew = 3;
// Attempts without success after which the search goes back to the best.
constexpr int64_t kMostStale = 300;
// Plans that half of the effort for improving is shared among.
constexpr int64_t kMostStarts = 8;
// The most parts that the way forward is cut into by a plan to start from.
constexpr int64_t kMostSegments = 256;
// How often a plan that is given is cut down to the capacity.
constexpr int kTriesToMend = 3;
// How much worse, relatively, the next plan may be at first.
constexpr double kTemperature = 0.02;
// Of the room that is left: above 1, often all of it.
constexpr double kMostReserved = 1.5;
// How often gaps are parted, each time for half of the effort that is left.
constexpr int kSplitRounds = 2;
// Of the effort, what a first plan from each start may not take.
constexpr int64_t kReserveOfEffort = 2;

class Search {
 public:
  Search(const Graph& graph, const GapTable& gaps, Bytes capacity,
         const SearchOptions& options)
      : graph_(graph),
        gaps_(gaps),
        capacity_(capacity),
        accepts_(options.accepts),
        part_to_exchange_(options.part_to_exchange),
        random_(options.common.seed),
        repairer_(graph, gaps, capacity, options, random_),
        ruiner_(graph, gaps, repairer_, random_) {}

  // From `start`, if there are any.
  SearchResult Run(Decisions start) {
    if (start.empty()) {
      Start();
    } else {
      best_.decisions = std::move(start);
      repairer_.Evaluate(best_);
      for (int i = 0; i < kTriesToMend && !best_.IsFeasible(); ++i) {
        Mend(i == 0 ? 0 : 0.5);
      }
    }
    if (!best_.IsFeasible()) Descend();
    // The preferred bytes cannot be kept everywhere: then a little more.
    if (best_.peak_bytes <= capacity_) {
      repairer_.AllowMore(std::exchange(best_.bytes_above, 0));
    }
    if (accepts_) {
      ImproveAccepted();
    } else if (best_.IsFeasible()) {
      ImproveStarts();
    }
    return {.gaps = gaps_,
            .decisions = best_.decisions,
            .recompute_seconds = best_.recompute_seconds,
            .peak_bytes = best_.peak_bytes,
            .lookups = repairer_.lookups()};
  }

  // The preferred bytes, or as little above them as was reached.
  [[nodiscard]] Bytes preferred_bytes() const {
    return repairer_.preferred_bytes();
  }

 private:
  // First only plans are followed that do not take much of the program's time again: a
  // repair that does not end is the longest.
  void Start() {
    const int64_t reserve = repairer_.effort() / kReserveOfEffort;
    for (const Seconds limit : {repairer_.program_seconds(), kNoLimit}) {
      StartFromEverything(kKeepToEnd, limit);
      if (best_.IsFeasible() && best_.recompute_seconds == 0) return;
      for (const uint8_t behind : {uint8_t{0}, uint8_t{kKeep}}) {
        if (repairer_.effort() > reserve) StartFromEverything(behind, limit);
      }
      StartFromCheckpoints(reserve, limit);
      if (best_.IsFeasible()) return;
    }
  }

  // Everything is kept but what lies behind the last use: that is made again
  // for everyone, made again once, or kept for the recomputations that read it.
  void StartFromEverything(uint8_t behind, Seconds limit) {
    SearchPlan plan{.decisions = gaps_.KeepAll()};
    for (GapIdx gap = 0; gap < gaps_.size(); ++gap) {
      if (gaps_.is_behind_last_use(gap) && gaps_.may_drop(gap)) {
        plan.decisions[At(gap)] = behind;
      }
    }
    Consider(std::move(plan), limit);
  }

  // Cuts from the best so far on, which may be near the capacity.
  void Mend(double noise) {
    SearchPlan plan{.decisions = best_.decisions};
    repairer_.Begin();
    repairer_.Repair(plan, kNoLimit, noise);
    if (plan.IsFeasible()) repairer_.FillUp(plan, noise);
    if (plan.IsBetterThan(best_)) best_ = std::move(plan);
  }

  void StartFromCheckpoints(int64_t reserve, Seconds limit) {
    SearchPlan unmodified{.decisions = gaps_.KeepAll()};
    repairer_.Evaluate(unmodified);
    const Checkpoints checkpoints(graph_, gaps_, repairer_.rollout());
    std::vector<Decisions> tried;
    for (int64_t parts = 1; parts <= kMostSegments; parts *= 2) {
      for (const int64_t halves : {2, 3}) {
        if (repairer_.effort() < reserve) return;
        const Bytes segment_bytes =
            2 * checkpoints.idle_bytes() / (halves * parts);
        Decisions decisions = checkpoints.Every(segment_bytes);
        if (std::ranges::find(tried, decisions) != tried.end()) continue;
        tried.push_back(decisions);
        Consider({.decisions = std::move(decisions)}, limit);
      }
    }
  }

  void Consider(SearchPlan plan, Seconds limit) {
    repairer_.Begin();
    repairer_.Repair(plan, limit, 0, best_.decisions.empty());
    if (limit < kNoLimit && !plan.IsFeasible()) return;
    if (plan.IsFeasible()) repairer_.FillUp(plan, 0);
    if (best_.decisions.empty() || plan.IsBetterThan(best_)) best_ = plan;
    if (plan.IsFeasible()) starts_.push_back(std::move(plan));
  }

  // No cut is left that helps at the peak: undo some at random, and repair
  // again. Half of the effort; what then fits can still be improved.
  void Descend() {
    const int64_t reserve = repairer_.effort() / 2;
    SearchPlan present = best_;
    while (repairer_.effort() > reserve && !present.IsFeasible()) {
      SearchPlan plan{.decisions = present.decisions};
      if (!ruiner_.Ruin(plan)) return;
      repairer_.Repair(plan, kNoLimit, 1);
      if (!present.IsBetterThan(plan)) present = std::move(plan);
    }
    if (present.IsBetterThan(best_)) best_ = std::move(present);
  }

  // A little from each of the best starts, then from the best of what came of
  // it: which start leads furthest cannot be seen at once.
  void ImproveStarts() {
    std::ranges::stable_sort(starts_, {}, &SearchPlan::recompute_seconds);
    const auto equal =
        std::ranges::unique(starts_, {}, &SearchPlan::recompute_seconds);
    starts_.erase(equal.begin(), equal.end());
    const int64_t num_starts = std::min(kMostStarts, std::ssize(starts_));
    const int64_t share = repairer_.effort() / (2 * kMostStarts);
    for (int64_t i = 1; i < num_starts; ++i) {
      Improve(std::move(starts_[At(i)]), repairer_.effort() - share);
    }
    Improve(best_, 0);
  }

  // From `present`, until no more than so much effort is left.
  void Improve(SearchPlan present, int64_t effort_at_end) {
    SearchPlan best = present;
    int64_t effort_to_exchange = 0;
    if (part_to_exchange_) {
      effort_to_exchange =
          (repairer_.effort() - effort_at_end) / *part_to_exchange_;
    }
    ImproveByChance(present, best, effort_at_end + effort_to_exchange);
    if (part_to_exchange_) Exchange(repairer_, best, effort_at_end);
    if (best.IsBetterThan(best_)) best_ = std::move(best);
  }

  // Undoes and repairs parts of `present` at random; the same.
  void ImproveByChance(SearchPlan& present, SearchPlan& best, int64_t effort_at_end) {
    const int64_t effort_at_start =
        std::max(repairer_.effort(), effort_at_end + 1);
    int64_t num_stale = 0;
    int64_t num_returns = 0;
    Polish(repairer_, present);
    if (present.IsBetterThan(best)) best = present;
    while (repairer_.effort() > effort_at_end && best.recompute_seconds > 0) {
      const double temperature =
          kTemperature * static_cast<double>(repairer_.effort() - effort_at_end) /
          static_cast<double>(effort_at_start - effort_at_end);
      SearchPlan plan{.decisions = present.decisions};
      if (!ruiner_.Ruin(plan)) break;
      const Seconds limit =
          present.recompute_seconds * (1 + temperature) + 1e-18;
      if (!repairer_.Repair(plan, kMostWorse * present.recompute_seconds, 0.5)) {
        ++num_stale;
        continue;
      }
      repairer_.FillUp(plan, 0.5);
      if (plan.recompute_seconds < present.recompute_seconds) {
        Polish(repairer_, plan);
        num_stale = 0;
      }
      if (plan.recompute_seconds <= limit) present = std::move(plan);
      if (present.IsBetterThan(best)) best = present;
      if (++num_stale > kMostStale) {
        present = best;
        if (++num_returns % 2 == 0) StartAnew(present);
        num_stale = 0;
      }
    }
  }

  // From a plan that has little in common with `present`, if that ends in one.
  void StartAnew(SearchPlan& present) {
    SearchPlan plan{.decisions = present.decisions};
    if (!ruiner_.RuinMuch(plan)) return;
    if (!repairer_.Repair(plan, kMostWorseAnew * present.recompute_seconds, 0.5)) {
      return;
    }
    repairer_.FillUp(plan, 0.5);
    present = std::move(plan);
  }

  // What is alive grows by a part of the room: a plan that takes all is seldom accepted.
  void ImproveAccepted() {
    SearchPlan present = best_;
    KeepAccepted(present);
    const int64_t effort_at_start = std::max<int64_t>(repairer_.effort(), 1);
    while (repairer_.effort() > 0 && present.recompute_seconds > 0) {
      const double temperature = kTemperature *
                                 static_cast<double>(repairer_.effort()) /
                                 static_cast<double>(effort_at_start);
      SearchPlan plan{.decisions = present.decisions};
      repairer_.Reserve({});
      if (!repairer_.Evaluate(plan)) break;
      const double reserved = kMostReserved * random_.Uniform();
      repairer_.Reserve(repairer_.PartOfRoom(std::min(1.0, reserved)));
      const Seconds limit = present.recompute_seconds * (1 + temperature);
      if (!ruiner_.Ruin(plan)) break;
      if (!repairer_.Repair(plan, kMostWorse * limit, 0.5)) continue;
      repairer_.FillUp(plan, 0.5);
      if (plan.recompute_seconds > limit) continue;
      if (plan.decisions == present.decisions || !Accepts(plan)) continue;
      KeepAccepted(plan);
      present = std::move(plan);
      if (present.IsBetterThan(best_)) best_ = present;
    }
  }

  // Takes decisions back, dearest first, where that is accepted.
  void KeepAccepted(SearchPlan& plan) {
    repairer_.Reserve({});
    if (!repairer_.Evaluate(plan)) return;
    int64_t num_tries = 0;
    for (const Fill& fill : DearestFirst(repairer_, plan)) {
      SearchPlan kept = plan;
      repairer_.Keep(kept, fill);
      if (!repairer_.Evaluate(kept, plan.recompute_seconds)) continue;
      if (!kept.IsBetterThan(plan)) continue;
      if (repairer_.effort() <= 0 || ++num_tries > kMostPolished) return;
      if (Accepts(kept)) plan = std::move(kept);
    }
  }

  bool Accepts(const SearchPlan& plan) {
    int64_t effort = 0;
    const bool accepts = accepts_(gaps_, plan.decisions, effort);
    repairer_.Spend(effort);
    return accepts;
  }

  const Graph& graph_;
  const GapTable& gaps_;
  const Bytes capacity_;
  const decltype(SearchOptions::accepts)& accepts_;
  const std::optional<int64_t> part_to_exchange_;
  RandomChoice random_;
  Repairer repairer_;
  Ruiner ruiner_;
  SearchPlan best_;
  std::vector<SearchPlan> starts_;  // That keep the capacity.
};

// From `start`, by the decisions of `gaps`, if there are any.
SearchResult SearchInRounds(const Graph& graph, Bytes capacity,
                            const SearchOptions& options, GapTable gaps,
                            Decisions start) {
  SearchOptions present = options;
  int64_t lookups = 0;
  for (int round = 0;; ++round) {
    const bool is_last = round == kSplitRounds;
    present.effort = is_last ? options.effort >> round
                             : options.effort >> (round + 1);
    Search search(graph, gaps, capacity, present);
    SearchResult found = search.Run(std::move(start));
    found.lookups += lookups;
    lookups = found.lookups;
    present.most_lookups = options.most_lookups - lookups;
    if (is_last || found.recompute_seconds == 0) return found;
    const auto splits = FindSplits(graph, found.gaps, found.decisions);
    if (splits.empty()) return found;
    GapTable finer(graph, splits);
    start = finer.Refine(found.gaps, found.decisions);
    gaps = std::move(finer);
    if (present.preferred_bytes) {
      present.preferred_bytes = search.preferred_bytes();
    }
  }
}

}  // namespace

SearchResult SearchDecisions(const Graph& graph, Bytes capacity,
                             const SearchOptions& options) {
  return SearchInRounds(graph, capacity, options, GapTable(graph), {});
}

SearchResult SearchEarlyDecisions(const Graph& graph, Bytes capacity,
                                  const SearchOptions& options) {
  GapTable gaps(graph, SplitsForEarlyRuns(graph));
  return SearchInRounds(graph, capacity, options, std::move(gaps), {});
}

SearchResult SearchFrom(const Graph& graph, Bytes capacity,
                        const SearchOptions& options,
                        const SearchResult& start) {
  return SearchInRounds(graph, capacity, options, start.gaps, start.decisions);
}

}  // namespace coop
