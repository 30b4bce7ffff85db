#include "core/online/policy.h"

#include <stdexcept>

namespace coop {

std::unique_ptr<Policy> MakePolicy(const State& state,
                                   const PlanOptions& options) {
  switch (options.policy) {
    case PolicyKind::kCoop:
      // Without its window Coop falls back to DTE's loop, as in the ablation
      // of the paper.
      return options.sliding_window ? MakeCoopPolicy(state)
                                    : MakeDtePolicy(state);
    case PolicyKind::kDtr:
      return MakeDtrPolicy(state, options);
    case PolicyKind::kDte:
      return MakeDtePolicy(state);
    case PolicyKind::kLookahead:
      return MakeLookaheadPolicy(state);
    case PolicyKind::kSearch:
      break;  // Not one of those that decide as they go.
  }
  throw std::logic_error("MakePolicy: unknown policy");
}

}  // namespace coop
