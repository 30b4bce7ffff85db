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

// Of what is kept where there is no room for what is made again: the cheapest for its
// bytes first.
std::vector<Cut> CheapestFirst(Repairer& repairer, const SearchPlan& plan) {
  const auto found = repairer.KeptInTheWay(plan);
  std::vector<Cut> order(found.begin(), found.end());
  std::ranges::stable_sort(
      order, {}, [](const Cut& cut) { return cut.seconds / cut.relief; });
  return order;
}

// False if what is kept in its place is not dearer.
bool ExchangeFor(Repairer& repairer, SearchPlan& plan, const Cut& cut) {
  SearchPlan dropped{.decisions = plan.decisions};
  dropped.decisions[At(cut.gap)] = cut.decision;
  repairer.Begin();
  repairer.Bar(cut.gap);
  repairer.FillUp(dropped, 0);
  if (!dropped.IsBetterThan(plan)) return false;
  Polish(repairer, dropped);
  plan = std::move(dropped);
  return true;
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
    const std::vector<Fill> fills = DearestFirst(repairer, plan);
    const std::vector<Cut> cuts = CheapestFirst(repairer, plan);
    for (size_t i = 0; i < std::max(fills.size(), cuts.size()); ++i) {
      if (repairer.effort() <= effort_at_end) return;
      if (i < fills.size()) has_helped |= ExchangeFor(repairer, plan, fills[i]);
      if (i < cuts.size()) has_helped |= ExchangeFor(repairer, plan, cuts[i]);
    }
  }
}

}  // namespace coop
