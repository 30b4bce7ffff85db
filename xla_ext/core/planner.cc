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
  SearchOptions search{.alignment = options.alignment,
                       .effort = std::min(options.search_effort,
                                          kEffortPerOp * graph.num_ops()),
                       .seed = options.seed,
                       .preferred_bytes = options.preferred_bytes,
                       .overhead_limit = options.overhead_limit};
  Bytes live_capacity = capacity;
  for (int attempt = 0; attempt < kPackingAttempts; ++attempt) {
    const SearchResult found =
        SearchDecisions(graph, live_capacity, search);
    if (found.peak_bytes > live_capacity) return std::nullopt;
    Rollout rollout(graph, found.gaps, options.alignment);
    rollout.Run(found.decisions);
    Schedule schedule = MakeStaticSchedule(
        graph, found.gaps, rollout,
        {.alignment = options.alignment,
         .effort = options.packing_effort,
         .seed = options.seed,
         .target_peak_bytes = options.limits_live_bytes ? 0 : capacity});
    if (options.limits_live_bytes) return schedule;
    const Bytes above = schedule.statistics.peak_bytes - capacity;
    if (above <= 0) {
      schedule.capacity = capacity;
      return schedule;
    }
    live_capacity -= RoundUp(above, options.alignment);
    search.effort /= 2;
  }
  return std::nullopt;
}

PlanResult PlanBySearch(const Graph& graph, Bytes capacity,
                        const PlanOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  std::optional<Schedule> best = SearchInPool(graph, capacity, options);
  std::optional<PlanFailure> failure;
  for (const PolicyKind policy :
       {PolicyKind::kCoop, PolicyKind::kLookahead, PolicyKind::kDtr,
        PolicyKind::kDte}) {
    PlanOptions online = options;
    online.policy = policy;
    if (best) {
      if (options.preferred_bytes) break;  // Which the others do not know.
      if (graph.num_ops() > kMostOpsToCompare) break;
      const double overhead = best->statistics.compute_overhead();
      if (overhead <= 1) break;
      online.overhead_limit =
          std::min(overhead, options.overhead_limit.value_or(overhead));
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
  if (options.overhead_limit && overhead > *options.overhead_limit) {
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
  return options.policy == PolicyKind::kSearch
             ? PlanBySearch(graph, capacity, options)
             : Simulate(graph, capacity, options);
}

}  // namespace coop
