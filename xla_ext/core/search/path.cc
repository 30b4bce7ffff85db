#include "core/search/path.h"

#include <algorithm>
#include <utility>

#include "core/search/random_choice.h"
#include "core/search/repair.h"

namespace coop {
namespace {

// The steps from the room that everything needs to `capacity`, and those on.
constexpr Bytes kStepsDown = 24;
constexpr Bytes kStepsBelow = 6;
// A step below is so small a part of the capacity.
constexpr Bytes kPartBelow = 50;
// Other tries to get down to a room.
constexpr int kMostTries = 2;

// Everything is kept until its last use, and what is made again behind it until
// the next operation that asks for it.
Decisions KeepEverything(const GapTable& gaps) {
  Decisions decisions = gaps.KeepAll();
  for (GapIdx gap = 0; gap < gaps.size(); ++gap) {
    if (gaps.is_behind_last_use(gap) && gaps.may_drop(gap)) {
      decisions[At(gap)] = kKeepToEnd;
    }
  }
  return decisions;
}

}  // namespace

std::vector<SearchPlan> PathOfPlans(const Graph& graph, const GapTable& gaps,
                                    Bytes capacity,
                                    const SearchOptions& options) {
  RandomChoice random(options.common.seed);
  SearchOptions anywhere = options;
  anywhere.preferred_bytes = std::nullopt;
  Repairer repairer(graph, gaps, capacity, anywhere, random);
  SearchPlan present{.decisions = KeepEverything(gaps)};
  if (!repairer.Evaluate(present)) return {};
  const Bytes step = std::max<Bytes>(0, present.peak_bytes - capacity) / kStepsDown;
  std::vector<SearchPlan> plans;
  for (Bytes i = kStepsDown - 1; i >= -kStepsBelow && repairer.effort() > 0;
       --i) {
    repairer.SetCapacity(capacity + i * (i >= 0 ? step : capacity / kPartBelow));
    bool fits = false;
    for (int tries = 0; tries <= kMostTries && !fits; ++tries) {
      SearchPlan plan{.decisions = present.decisions};
      repairer.Begin();
      fits = repairer.Repair(plan, kNoLimit, tries == 0 ? 0 : 0.5);
      if (!fits) continue;
      repairer.FillUp(plan, 0);
      present = std::move(plan);
    }
    // The first of them is where to go on from if no other fits.
    if (fits && i <= 1) plans.push_back(present);
  }
  return plans;
}

}  // namespace coop
