#include "core/planner.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "core/online/simulator.h"
#include "core/packing/packing.h"
#include "core/search/gaps.h"
#include "core/search/rollout.h"
#include "core/search/search.h"
#include "core/search/static_schedule.h"

namespace coop {
namespace {

// A plan that packs badly is searched again with as much less, so often.
constexpr int kPackingAttempts = 4;
// Up to here the search's plan is compared with those of the other policies,
// whose time grows faster than its own: at 50,000 operations, tens of seconds
// for one. Beyond, they are asked only if it finds none.
constexpr OpIdx kMostOpsToCompare = 10'000;

// Small programs are searched through long before the effort is spent.
constexpr int64_t kEffortPerOp = 200'000;

// The search limits the bytes alive; where packing them takes more than
// `capacity`, it gets that much less.
std::optional<Schedule> SearchInPool(const Graph& graph, Bytes capacity,
                                     const PlanOptions& options) {
  const Bytes alignment = options.common.alignment;
  const bool limits_live_bytes = options.search.limits_live_bytes;
  SearchOptions search{.common = options.common,
                       .effort = std::min(options.search.effort,
                                          kEffortPerOp * graph.num_ops()),
                       .preferred_bytes = options.search.preferred_bytes};
  Bytes live_capacity = capacity;
  for (int attempt = 0; attempt < kPackingAttempts; ++attempt) {
    const SearchResult found =
        SearchDecisions(graph, live_capacity, search);
    if (found.peak_bytes > live_capacity) return std::nullopt;
    Rollout rollout(graph, found.gaps, alignment);
    rollout.Run(found.decisions);
    Schedule schedule = MakeStaticSchedule(
        graph, found.gaps, rollout,
        {.alignment = alignment,
         .effort = options.search.packing_effort,
         .seed = options.common.seed,
         .target_peak_bytes = limits_live_bytes ? 0 : capacity});
    if (limits_live_bytes) return schedule;
    const Bytes above = schedule.statistics.peak_bytes - capacity;
    if (above <= 0) {
      schedule.capacity = capacity;
      return schedule;
    }
    live_capacity -= RoundUp(above, alignment);
    search.effort /= 2;
  }
  return std::nullopt;
}

PlanResult PlanBySearch(const Graph& graph, Bytes capacity,
                        const PlanOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  const std::optional<double> overhead_limit = options.common.overhead_limit;
  std::optional<Schedule> best = SearchInPool(graph, capacity, options);
  std::optional<PlanFailure> failure;
  for (const OnlinePolicy policy :
       {OnlinePolicy::kCoop, OnlinePolicy::kLookahead, OnlinePolicy::kDtr,
        OnlinePolicy::kDte}) {
    OnlineOptions online = OnlineOptionsFor(policy, options);
    if (best) {
      // Which the online policies do not know.
      if (options.search.preferred_bytes) break;
      if (graph.num_ops() > kMostOpsToCompare) break;
      const double overhead = best->statistics.compute_overhead();
      if (overhead <= 1) break;
      online.common.overhead_limit =
          std::min(overhead, overhead_limit.value_or(overhead));
    }
    PlanResult result = Simulate(graph, capacity, online);
    if (auto* schedule = std::get_if<Schedule>(&result)) {
      if (!best || schedule->statistics.recompute_seconds <
                       best->statistics.recompute_seconds) {
        best = std::move(*schedule);
      }
    } else if (!failure) {
      failure = std::get<PlanFailure>(result);
    }
  }
  if (!best) return *failure;
  const double overhead = best->statistics.compute_overhead();
  if (overhead_limit && overhead > *overhead_limit) {
    return PlanFailure{.reason = PlanFailure::Reason::kOverheadLimit,
                       .capacity = capacity};
  }
  best->statistics.search_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
          .count();
  return std::move(*best);
}

}  // namespace

PlanResult Plan(const Graph& graph, Bytes capacity,
                const PlanOptions& options) {
  const auto online = AsOnlinePolicy(options.policy);
  return online ? Simulate(graph, capacity, OnlineOptionsFor(*online, options))
                : PlanBySearch(graph, capacity, options);
}

}  // namespace coop
