// Which tensors to evict: the one decision in which the planners differ.
#ifndef COOP_CORE_ONLINE_POLICY_H_
#define COOP_CORE_ONLINE_POLICY_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/base/types.h"
#include "core/online/options.h"
#include "core/online/state.h"

namespace coop {

struct Eviction {
  std::vector<TensorIdx> victims;  // Not empty.
  double cost = 0;                 // The sum of their Cost().
};

// Sees the state, never changes it; the simulator reports what it did.
class Policy {
 public:
  virtual ~Policy() = default;

  // The regret of evicting resident tensor `t` now. Not negative, may be
  // infinite.
  [[nodiscard]] virtual double Cost(TensorIdx t) = 0;

  // The tensors to evict next so that a block of `bytes` (rounded up to the
  // alignment) fits, or comes nearer to fitting; asked again until it does.
  // nullopt: no eviction is left that would help.
  [[nodiscard]] virtual std::optional<Eviction> Choose(Bytes bytes) = 0;

  // `t` has left the pool, but can be recomputed.
  virtual void OnEvict(TensorIdx t) = 0;
  // `t` has been made, for the first time or again.
  virtual void OnMake(TensorIdx t) = 0;

  [[nodiscard]] int64_t pieces_examined() const { return pieces_examined_; }

 protected:
  int64_t pieces_examined_ = 0;
};

// `state` must outlive the policy.
[[nodiscard]] std::unique_ptr<Policy> MakePolicy(
    const State& state, const OnlineOptions& options);

// One per file, see there.
[[nodiscard]] std::unique_ptr<Policy> MakeCoopPolicy(const State& state);
[[nodiscard]] std::unique_ptr<Policy> MakeDtePolicy(const State& state);
[[nodiscard]] std::unique_ptr<Policy> MakeLookaheadPolicy(const State& state);
[[nodiscard]] std::unique_ptr<Policy> MakeDtrPolicy(
    const State& state, const DtrOptions& options, uint64_t seed);

}  // namespace coop

#endif  // COOP_CORE_ONLINE_POLICY_H_
