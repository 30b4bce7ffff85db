#include "core/search/polish.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace coop {
namespace {

// What is dropped for a value: the cheapest, then by chance others that are as good.
constexpr double kNoises[] = {0, 0.5};

// False if nothing that may be dropped for it is cheaper.
bool ExchangeFor(Repairer& repairer, SearchPlan& plan, const Fill& fill) {
  for (const double noise : kNoises) {
    SearchPlan kept{.decisions = plan.decisions};
    repairer.Begin();
    repairer.Keep(kept, fill, /*bars=*/true);
    if (!repairer.Repair(kept, kMostWorse * plan.recompute_seconds, noise)) continue;
    repairer.FillUp(kept, 0);
    if (!kept.IsBetterThan(plan)) continue;
    Polish(repairer, kept);
    plan = std::move(kept);
    return true;
  }
  return false;
}

}  // namespace

std::vector<Fill> DearestFirst(Repairer& repairer, const SearchPlan& plan) {
  const auto found = repairer.Recomputed(plan);
  std::vector<Fill> order(found.begin(), found.end());
  std::ranges::stable_sort(order, std::greater<>{}, &Fill::seconds);
  return order;
}

void Polish(Repairer& repairer, SearchPlan& plan) {
  if (!repairer.Evaluate(plan)) return;
  int64_t num_tries = 0;
  for (const Fill& fill : DearestFirst(repairer, plan)) {
    if (repairer.effort() <= 0 || ++num_tries > kMostPolished) return;
    SearchPlan kept = plan;
    repairer.Keep(kept, fill);
    if (repairer.Evaluate(kept, plan.recompute_seconds) && kept.IsBetterThan(plan)) {
      plan = std::move(kept);
    }
  }
}

void Exchange(Repairer& repairer, SearchPlan& plan, int64_t effort_at_end) {
  bool has_helped = true;
  while (std::exchange(has_helped, false)) {
    if (!repairer.Evaluate(plan)) return;
    for (const Fill& fill : DearestFirst(repairer, plan)) {
      if (repairer.effort() <= effort_at_end) return;
      has_helped |= ExchangeFor(repairer, plan, fill);
    }
  }
}

}  // namespace coop
