// Coop: evict the cheapest run of neighbours, cost / staleness each.

#include "core/online/neighbour_cost.h"
#include "core/online/policy_window.h"
#include "core/online/staleness.h"

namespace coop {
namespace {

class CoopPolicy final : public WindowPolicy {
 public:
  explicit CoopPolicy(const State& state)
      : WindowPolicy(state), neighbours_(state.graph) {}

  double Cost(TensorIdx t) override {
    return PerStaleness(state_, t, neighbours_.Of(t));
  }

  void OnEvict(TensorIdx t) override { neighbours_.OnEvict(t); }
  void OnMake(TensorIdx t) override { neighbours_.OnMake(t); }

 private:
  NeighbourCost neighbours_;
};

}  // namespace

std::unique_ptr<Policy> MakeCoopPolicy(const State& state) {
  return std::make_unique<CoopPolicy>(state);
}

}  // namespace coop
