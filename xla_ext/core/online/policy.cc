#include "core/online/policy.h"

#include <stdexcept>

namespace coop {

std::unique_ptr<Policy> MakePolicy(const State& state,
                                   const OnlineOptions& options) {
  switch (options.policy) {
    case OnlinePolicy::kCoop:
      // Without its window Coop falls back to DTE's loop, as in the ablation
      // of the paper.
      return options.coop.sliding_window ? MakeCoopPolicy(state)
                                         : MakeDtePolicy(state);
    case OnlinePolicy::kDtr:
      return MakeDtrPolicy(state, options.dtr, options.common.seed);
    case OnlinePolicy::kDte:
      return MakeDtePolicy(state);
    case OnlinePolicy::kLookahead:
      return MakeLookaheadPolicy(state);
  }
  throw std::logic_error("MakePolicy: unknown policy");
}

}  // namespace coop
