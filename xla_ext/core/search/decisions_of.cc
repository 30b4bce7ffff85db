#include "core/search/decisions_of.h"

namespace coop {

Decisions DecisionsOf(const Graph& graph, const GapTable& gaps,
                      const Schedule& schedule) {
  Decisions decisions = gaps.KeepAll();
  Position position = 0;  // The operation that is next to run.
  const auto decide = [&](TensorIdx t, uint8_t decision) {
    if (!gaps.has_gaps(t)) return;
    const GapIdx gap = gaps.at(t, position);
    if (!gaps.may_drop(gap) || gaps.is_behind_last_use(gap)) return;
    decisions[At(gap)] = decision;
  };
  for (const auto& [kind, index] : schedule.steps) {
    switch (kind) {
      case StepKind::kCompute:
        position = index + 1;
        break;
      case StepKind::kRecompute:
        // What is made again stays, unless it is dropped below.
        for (const TensorIdx t : graph.outputs(index)) {
          if (!gaps.has_gaps(t)) continue;
          const GapIdx gap = gaps.at(t, position);
          if (decisions[At(gap)] == 0) decide(t, kKeepToEnd);
        }
        break;
      case StepKind::kEvict:
        decide(index, 0);
        break;
      case StepKind::kFree:
        break;
    }
  }
  return decisions;
}

}  // namespace coop
