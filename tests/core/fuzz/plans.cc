#include "fuzz.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <variant>

#include "core/graph/bounds.h"
#include "core/graph/graph.h"
#include "core/minimum.h"
#include "core/options.h"
#include "core/planner.h"
#include "core/schedule/schedule.h"
#include "core/schedule/validator.h"
#include "random_graph.h"

namespace coop {
namespace {

PlanOptions RandomOptions(Random& random) {
  PlanOptions options;
  options.policy = static_cast<PolicyKind>(random.Between(0, 4));
  options.search.effort = 3000;
  options.search.packing_effort = 100'000;
  options.common.alignment = Bytes{1} << (2 * random.Between(0, 4));
  options.coop.sliding_window = random.Chance(70);
  options.coop.partition = random.Chance(70);
  options.coop.recomputable_in_place = random.Chance(70);
  if (random.Chance(20)) options.copy_on_write = random.Chance(50);
  options.dtr.neighbourhood = static_cast<Neighbourhood>(random.Between(0, 2));
  options.dtr.ignore_small = random.Chance(30);
  options.dtr.sampling = random.Chance(30);
  options.search.limits_live_bytes = random.Chance(50);
  options.common.seed = static_cast<uint64_t>(random.Between(0, 9));
  options.common.overhead_limit = 50;
  return options;
}

std::string Describe(const PlanOptions& o) {
  char text[200];
  std::snprintf(text, sizeof(text),
                "policy %d alignment %lld window %d partition %d in_place %d "
                "copy_on_write %d",
                static_cast<int>(o.policy),
                static_cast<long long>(o.common.alignment),
                o.coop.sliding_window, o.coop.partition,
                o.coop.recomputable_in_place, CopiesOnWrite(o));
  return text;
}

class PlanFuzzer {
 public:
  explicit PlanFuzzer(uint64_t seed) : seed_(seed), random_(seed) {}

  bool RunOnce(Counts& counts) {
    const Graph graph(ProgramBuilder(random_).Build());
    const PlanOptions options = RandomOptions(random_);
    const Bytes bound = FindLowerBound(graph, options.common.alignment).bytes;
    const Schedule loose = PlanUnconstrained(graph, options);
    if (!IsValid(graph, loose, options, {})) return false;
    if (loose.statistics.forced_evictions != 0) {
      return Complain(options, "evicted in a pool with room for everything");
    }
    const Bytes peak = loose.statistics.peak_bytes;
    const auto minimum = FindMinimumPool(graph, options);
    if (!minimum) return Complain(options, "no minimum pool");
    if (!IsValid(graph, minimum->schedule, options,
                 Promised(options, minimum->capacity))) {
      return false;
    }
    Count(minimum->schedule, counts);
    if (minimum->capacity < bound) {
      return Complain(options, "planned below the lower bound");
    }
    for (const int64_t percent : {-50, 0, 5, 10, 20, 40, 80, 100}) {
      const Bytes low = percent < 0 ? bound : minimum->capacity;
      const Bytes capacity = std::max(
          bound, low + (peak - low) * std::abs(percent) / 100);
      PlanOptions preferring = options;
      if (random_.Chance(30)) {
        preferring.search.preferred_bytes =
            capacity * random_.Between(0, 100) / 100;
      }
      const PlanResult result = Plan(graph, capacity, preferring);
      ++counts.plans;
      const auto* schedule = std::get_if<Schedule>(&result);
      if (schedule == nullptr) {
        ++counts.failures;
        continue;
      }
      if (!IsValid(graph, *schedule, options, Promised(options, capacity))) {
        return false;
      }
      Count(*schedule, counts);
    }
    if (bound > 0) {
      const PlanResult result = Plan(graph, bound - 1, options);
      if (std::holds_alternative<Schedule>(result)) {
        return Complain(options, "planned below the lower bound");
      }
    }
    return true;
  }

 private:
  bool Complain(const PlanOptions& options, const std::string& text) {
    std::fprintf(stderr, "seed %llu, %s: %s\n",
                 static_cast<unsigned long long>(seed_),
                 Describe(options).c_str(), text.c_str());
    return false;
  }

  static Limits Promised(const PlanOptions& options, Bytes capacity) {
    const bool live_bytes = options.policy == PolicyKind::kSearch &&
                            options.search.limits_live_bytes;
    if (live_bytes) return {.pool_bytes = {}, .live_bytes = capacity};
    return {.pool_bytes = capacity, .live_bytes = capacity};
  }

  bool IsValid(const Graph& graph, const Schedule& schedule,
               const PlanOptions& options, const Limits& limits) {
    const auto reports = Validate(graph, schedule, limits);
    for (const auto& report : reports) {
      Complain(options, "capacity " + std::to_string(schedule.capacity) +
                            " step " + std::to_string(report.step) + ": " +
                            Name(report.violation) + ": " + report.text);
    }
    return reports.empty();
  }

  static void Count(const Schedule& schedule, Counts& counts) {
    counts.evictions += schedule.statistics.forced_evictions;
    counts.recomputations += schedule.statistics.recomputations;
    for (const Placement& placement : schedule.placements) {
      counts.takeovers += placement.taken_over != kNone;
    }
  }

  uint64_t seed_;
  Random random_;
};

}  // namespace

bool FuzzPlans(uint64_t seed, Counts& counts) {
  return PlanFuzzer(seed).RunOnce(counts);
}

}  // namespace coop
