// Ruin: destroys part of a plan, for the repair to mend it in another way (large
// neighbourhood search).
#ifndef COOP_CORE_SEARCH_RUIN_H_
#define COOP_CORE_SEARCH_RUIN_H_

#include <cstdint>
#include <vector>

#include "core/base/types.h"
#include "core/graph/graph.h"
#include "core/search/gaps.h"
#include "core/search/plan.h"
#include "core/search/random_choice.h"
#include "core/search/repair.h"

namespace coop {

class Ruiner {
 public:
  // All must outlive it.
  Ruiner(const Graph& graph, const GapTable& gaps, Repairer& repairer,
         RandomChoice& random)
      : graph_(graph), gaps_(gaps), repairer_(repairer), random_(random) {}

  // False if there is nothing to undo. Half of the time what it decides is barred,
  // so that the repair has to find something else.
  bool Ruin(SearchPlan& plan);

  // A good part of all that is recomputed. False if the plan cannot be evaluated.
  bool RuinMuch(SearchPlan& plan);

 private:
  void VaryUnread(SearchPlan& plan);
  void MarkRead();
  [[nodiscard]] Seconds SecondsOf(GapIdx gap) const;
  void Drop(SearchPlan& plan);

  const Graph& graph_;
  const GapTable& gaps_;
  Repairer& repairer_;
  RandomChoice& random_;
  std::vector<uint8_t> is_read_;  // By gap.
};

}  // namespace coop

#endif  // COOP_CORE_SEARCH_RUIN_H_
