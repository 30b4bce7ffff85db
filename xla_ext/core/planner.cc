#include "core/planner.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <optional>
#include <utility>
#include <variant>

#include "core/base/deadline.h"
#include "core/graph/bounds.h"
#include "core/online/simulator.h"
#include "core/search/plan.h"
#include "core/search/pool_search.h"
#include "core/search/recomputation_bound.h"

namespace coop {
namespace {

// Up to here the search's plan is compared with those of the other policies,
// whose time grows faster than its own: at 50,000 operations, tens of seconds
// for one. Beyond, they are asked only if it finds none. As far, the search is done
// again with other seeds.
constexpr OpIdx kMostOpsToCompare = 10'000;

// Small programs are searched through long before the effort is spent: there are fewer
// values to decide about, and each plan is shorter. Of so much for each pair of operations.
constexpr int64_t kEffortPerPairOfOps = 1'000;

// What is beyond that is spent in rounds of so much.
constexpr int64_t kEffortPerSearch = PlanSearchOptions{}.effort;

// The search goes on from other plans where its first one may be so much above
// the least recomputation, in parts of the program's seconds.
constexpr double kNearBound = 0.002;
constexpr double kRounding = 1e-9;  // Of sums of the same seconds.
// What an online planner may take in place of a plan of the search, in
// operations run and tensors looked at.
constexpr int64_t kOnlineSteps = 3'000'000;
constexpr int64_t kOnlineStepsPerOp = 1'000;
// With a deadline, also by about what it does in a second; each of them in a
// part of the time that is left.
constexpr double kOnlineStepsPerSecond = 30'000.0;
// Of the seconds, what the search may take; the rest is for what comes after.
constexpr double kSearchPartOfSeconds = 0.6;
// Of those that are left then, what going on may take.
constexpr double kContinuePartOfSeconds = 0.9;

// Up to here values may be made again early, and the search is tried with less effort,
// too: on the steps of large networks that takes long and has found nothing.
constexpr OpIdx kMostOpsToGoOn = 2'000;

// Up to here less effort is tried near the bound, too.
constexpr OpIdx kMostOpsNearBound = 1'000;

// Near the bound the search goes on in so many rounds at most.
constexpr int kMostRoundsNearBound = 4;

// With the whole effort of a search, the seeds that it is done again with, and the plans
// that are changed until they pack: by itself it may end in a plan that is far from the
// best of a few.
constexpr int kOtherSeeds = 2;
constexpr int kNegotiated = 3;

// Of the effort for packing, what the search has without effort of its own.
constexpr double kLeastPartOfPacking = 0.0625;

// Searches while there is no plan; one where many rooms are only asked whether they
// have one.
constexpr int kSearchesForAPlan = 2;

// The search is tried with so much less effort as well, again and again, and then
// with none: whatever less effort tries, more does, too.
constexpr int64_t kLessEffort = 4;
constexpr int64_t kLeastEffort = 20'000;

PlanFailure FailureBelowBound(const LowerBound& bound, Bytes capacity) {
  return {.op = bound.position,
          .requested_by = bound.position,
          .requested_bytes = bound.bytes,
          .free_bytes = capacity,
          .largest_free_bytes = capacity,
          .capacity = capacity};
}

class SearchPlanner {
 public:
  SearchPlanner(const Graph& graph, Bytes capacity, const PlanOptions& options,
                Lookups most_lookups = {})
      : graph_(graph),
        capacity_(capacity),
        options_(options),
        deadline_(options.search.seconds),
        search_(graph, capacity, InPool(graph, options, most_lookups)) {}

  // `known`, if it is not nullptr: a plan of the graph, never worse than that.
  PlanResult Plan(const Schedule* known = nullptr) {
    search_.Search();
    const bool goes_far = options_.search.effort >= kEffortPerSearch;
    const int num_negotiated = goes_far ? kNegotiated : 1;
    if (!search_.best()) search_.Negotiate(num_negotiated);
    if (goes_far && graph_.num_ops() <= kMostOpsToCompare) search_.SearchLive();
    search_.Negotiate(num_negotiated);
    best_ = search_.best();
    if (IsFarFromBest() && !deadline_.IsOver()) {
      if (graph_.num_ops() <= kMostOpsToGoOn) search_.SearchEarly();
      if (goes_far && graph_.num_ops() <= kMostOpsToCompare) {
        search_.SearchOtherSeeds(kOtherSeeds);
      }
      search_.SearchBelow();
      search_.Negotiate(1);
      Offer(search_.best());
      if (graph_.num_ops() <= kMostOpsToGoOn && IsFarFromBest()) {
        search_.SearchPacked();
      }
      Offer(search_.best());
    } else if (goes_far && IsAboveBound() && graph_.num_ops() <= kMostOpsToCompare) {
      SearchNearBound(num_negotiated);
    }
    OfferOnline();
    has_none_ = !best_;
    if (known != nullptr) OfferKnown(*known);
    if (!best_ && !is_within_another_) OfferAtAnyCost();
    if (options_.search.seconds && !options_.search.preferred_bytes) {
      search_.Continue(Deadline(SecondsToContinue()), best_ ? Bound() : 0,
                       std::numeric_limits<int64_t>::max());
      Offer(search_.best());
    }
    const bool is_small = graph_.num_ops() <= kMostOpsNearBound;
    if (!is_within_another_ && IsAboveBound(is_small ? kRounding : kNearBound)) {
      OfferWithLessEffort();
      if (has_none_) OfferAtAnyCost();
      GoOnWithMoreEffort();
    }
    if (!best_) return failure_.value_or(PlanFailure{.capacity = capacity_});
    if (!IsWithinLimit()) {
      return PlanFailure{.reason = PlanFailure::Reason::kOverheadLimit,
                         .capacity = capacity_};
    }
    if (!options_.search.any_plan) {
      best_->statistics.recompute_bound_seconds = Bound();
    }
    return *std::move(best_);
  }

 private:
  // In rounds, for as long as one finds a better plan: how much is left to find cannot be
  // seen, as there may be no plan at the bound.
  void SearchNearBound(int num_negotiated) {
    for (int round = 0; round < kMostRoundsNearBound && !deadline_.IsOver(); ++round) {
      const Seconds last = best_->statistics.recompute_seconds;
      search_.SearchNearBound();
      search_.Negotiate(num_negotiated);
      Offer(search_.best());
      if (best_->statistics.recompute_seconds >= last || !IsAboveBound()) return;
    }
  }

  // Little effort for the search packs with less, too: it is tried beside more.
  static int64_t PackingEffort(const PlanSearchOptions& search) {
    const double part = static_cast<double>(search.effort) /
                        static_cast<double>(kEffortPerSearch);
    return static_cast<int64_t>(std::clamp(part, kLeastPartOfPacking, 1.0) *
                                static_cast<double>(search.packing_effort));
  }

  static int64_t MostEffort(const Graph& graph) {
    // The square has to fit; of so many operations the effort is the limit anyhow.
    const int64_t num_ops = std::min<int64_t>(graph.num_ops(), kEffortPerSearch);
    return kEffortPerPairOfOps * num_ops * num_ops;
  }

  static PoolSearchOptions InPool(const Graph& graph,
                                  const PlanOptions& options,
                                  Lookups most_lookups) {
    std::optional<double> seconds = options.search.seconds;
    if (seconds) *seconds *= kSearchPartOfSeconds;
    return {.search = {.common = options.common,
                       .effort = std::min({options.search.effort,
                                           kEffortPerSearch, MostEffort(graph)}),
                       .deadline = Deadline(seconds),
                       .preferred_bytes = options.search.preferred_bytes},
            .most_lookups = most_lookups,
            .packing_effort = PackingEffort(options.search),
            .most_searches = options.search.any_plan ? 1 : kSearchesForAPlan,
            .limits_live_bytes = options.search.limits_live_bytes};
  }

  // Of the first plan that is known.
  Seconds Bound() {
    if (!bound_) {
      bound_ = RecomputationBound(graph_, capacity_, options_.common.alignment,
                                  best_->statistics.recompute_seconds);
    }
    return *bound_;
  }

  [[nodiscard]] bool IsWithinLimit() const {
    const std::optional<double> limit = options_.common.overhead_limit;
    return !limit || best_->statistics.compute_overhead() <= *limit;
  }

  [[nodiscard]] bool IsFarFromBest() { return IsAboveBound(kNearBound); }

  // By more than such a part of the program's seconds.
  [[nodiscard]] bool IsAboveBound(double part = kRounding) {
    if (!best_) return true;
    // Which plans on the path do not keep.
    if (options_.search.preferred_bytes) return false;
    if (options_.search.any_plan && IsWithinLimit()) return false;
    const Statistics& statistics = best_->statistics;
    return statistics.recompute_seconds - Bound() >
           part * statistics.compute_seconds;
  }

  // Some are left for the last packing.
  [[nodiscard]] double SecondsToContinue() const {
    return kContinuePartOfSeconds * *deadline_.SecondsLeft();
  }

  // What less effort finds is found with more, too.
  void OfferWithLessEffort() {
    if (options_.search.seconds || options_.search.any_plan) return;
    if (graph_.num_ops() > kMostOpsToGoOn) return;
    int64_t effort = std::min(options_.search.effort, kEffortPerSearch);
    Lookups lookups = search_.lookups_left();
    const int64_t most = MostEffort(graph_);
    while (effort > 0) {
      effort = effort < kLeastEffort ? 0 : effort / kLessEffort;
      if (effort > most) continue;  // It would do what was done.
      PlanOptions less = options_;
      less.search.effort = effort;
      less.common.overhead_limit = std::nullopt;
      if (best_) lookups = {};
      if (lookups.IsSpent()) return;
      SearchPlanner planner(graph_, capacity_, less, lookups);
      planner.is_within_another_ = true;
      planner.bound_ = bound_;
      planner.has_no_online_plan_ = has_no_online_plan_;
      PlanResult result = planner.Plan();
      has_none_ |= planner.has_none_;
      lookups = planner.search_.lookups_left();
      if (auto* schedule = std::get_if<Schedule>(&result)) {
        Offer(std::move(*schedule));
      }
    }
  }

  // Once: that does not depend on the effort.
  void OfferAtAnyCost() {
    if (deadline_.IsOver() || std::exchange(has_tried_any_cost_, true)) return;
    search_.SearchAtAnyCost();
    Offer(search_.best());
  }

  // More effort than is spent on one search goes on from there: never worse.
  void GoOnWithMoreEffort() {
    if (options_.search.seconds || options_.search.any_plan) return;
    const int64_t rounds = options_.search.effort / kEffortPerSearch - 1;
    if (rounds <= 0 || options_.search.preferred_bytes) return;
    search_.Continue(Deadline(std::nullopt), best_ ? Bound() : 0, rounds);
    Offer(search_.best());
  }

  // And what can be made of it, if it fits and is better.
  void OfferKnown(const Schedule& known) {
    const Statistics& statistics = known.statistics;
    const bool is_live = options_.search.limits_live_bytes;
    const Bytes bytes =
        is_live ? statistics.max_live_bytes : statistics.peak_bytes;
    if (bytes > capacity_ || !IsBetter(known)) return;
    search_.SearchFromSchedule(known);
    Schedule copy = known;
    if (!is_live) copy.capacity = capacity_;
    Offer(std::move(copy));
    Offer(search_.best());
  }

  [[nodiscard]] bool IsBetter(const Schedule& schedule) const {
    return !best_ || schedule.statistics.recompute_seconds <
                         best_->statistics.recompute_seconds;
  }

  // If it is better.
  void Offer(std::optional<Schedule> schedule) {
    if (schedule && IsBetter(*schedule)) best_ = std::move(schedule);
  }

  [[nodiscard]] int64_t OnlineSteps() const {
    const int64_t steps = kOnlineSteps + kOnlineStepsPerOp * graph_.num_ops();
    const std::optional<double> left = deadline_.SecondsLeft();
    if (!left) return steps;
    return std::min(steps, static_cast<int64_t>(*left * kOnlineStepsPerSecond));
  }

  // And what can be made of it.
  void OfferOnline() {
    // Less effort has no plan that they may not exceed: they would find none again.
    if (has_no_online_plan_) return;
    const bool is_any_good = !best_;
    std::optional<Schedule> online = BestOnline();
    has_no_online_plan_ = is_any_good && !online;
    if (!online) return;
    search_.SearchFromSchedule(*online);
    Offer(std::move(online));
    Offer(search_.best());
  }

  // The best plan of the online planners, if it is better than the best so far.
  std::optional<Schedule> BestOnline() {
    std::optional<Schedule> online_best;
    for (const OnlinePolicy policy :
         {OnlinePolicy::kCoop, OnlinePolicy::kLookahead, OnlinePolicy::kDtr,
          OnlinePolicy::kDte}) {
      const std::optional<Schedule>& best = online_best ? online_best : best_;
      OnlineOptions online = OnlineOptionsFor(policy, options_);
      // The caller's judges at the end: a plan above it is one to go on from.
      online.common.overhead_limit = std::nullopt;
      if (best) {
        // Which the online policies do not know.
        if (options_.search.preferred_bytes) break;
        if (options_.search.any_plan && IsWithinLimit()) break;
        if (graph_.num_ops() > kMostOpsToCompare) break;
        const double overhead = best->statistics.compute_overhead();
        if (overhead <= 1) break;
        online.common.overhead_limit = overhead;
      }
      int64_t steps = OnlineSteps();
      PlanResult result = Simulate(graph_, capacity_, online, &steps);
      if (auto* schedule = std::get_if<Schedule>(&result)) {
        if (!best || schedule->statistics.recompute_seconds <
                         best->statistics.recompute_seconds) {
          online_best = std::move(*schedule);
        }
      } else if (!failure_) {
        failure_ = std::get<PlanFailure>(result);
      }
    }
    return online_best;
  }

  const Graph& graph_;
  const Bytes capacity_;
  const PlanOptions& options_;
  const Deadline deadline_;
  bool is_within_another_ = false;
  bool has_none_ = false;  // With some effort, but at any cost.
  bool has_tried_any_cost_ = false;
  bool has_no_online_plan_ = false;  // Whatever it costs.
  PoolSearch search_;
  std::optional<Schedule> best_;
  std::optional<Seconds> bound_;
  std::optional<PlanFailure> failure_;  // The first, if there is no plan.
};

PlanResult PlanBySearch(const Graph& graph, Bytes capacity,
                        const PlanOptions& options, const Schedule* known) {
  const auto start = std::chrono::steady_clock::now();
  const LowerBound bound = FindLowerBound(graph, options.common.alignment);
  if (capacity < bound.bytes) return FailureBelowBound(bound, capacity);
  PlanResult result = SearchPlanner(graph, capacity, options).Plan(known);
  if (auto* schedule = std::get_if<Schedule>(&result)) {
    schedule->statistics.search_seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
            .count();
  }
  return result;
}

}  // namespace

PlanResult Plan(const Graph& graph, Bytes capacity, const PlanOptions& options,
                const Schedule* known) {
  const auto online = AsOnlinePolicy(options.policy);
  return online ? Simulate(graph, capacity, OnlineOptionsFor(*online, options))
                : PlanBySearch(graph, capacity, options, known);
}

}  // namespace coop
