// Fills, the retention candidates of the search: values that a plan recomputes and
// might keep instead, where there is room.
#ifndef COOP_CORE_SEARCH_FILLS_H_
#define COOP_CORE_SEARCH_FILLS_H_

#include <span>
#include <vector>

#include "core/base/types.h"
#include "core/graph/graph.h"
#include "core/search/gaps.h"
#include "core/search/rollout.h"

namespace coop {

// Keeping the value in `gap` fills the executions in (from, to), both
// exclusive, with its bytes.
struct Fill {
  GapIdx gap = kNone;
  ExecIdx from = 0;
  ExecIdx to = 0;
  Seconds seconds = 0;  // Of the recomputations that make it in this gap.
  // The positions at which the value before was made, and used last.
  Position made = kNone;
  Position last_used = kNone;
};

class FillFinder {
 public:
  // All must outlive the finder; `rollout` is read anew by every Find.
  FillFinder(const Graph& graph, const GapTable& gaps, const Rollout& rollout);

  // Every gap in which the rollout of `decisions` makes a value again. Valid
  // until the next call.
  [[nodiscard]] std::span<const Fill> Find(const Decisions& decisions);

 private:
  const Graph& graph_;
  const GapTable& gaps_;
  const Rollout& rollout_;
  std::vector<Fill> fills_;
  std::vector<VersionIdx> present_;  // By tensor: its latest version.
  std::vector<int64_t> fill_of_;     // By gap.
};

}  // namespace coop

#endif  // COOP_CORE_SEARCH_FILLS_H_
