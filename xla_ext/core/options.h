// What a caller may choose about a plan.
#ifndef COOP_CORE_OPTIONS_H_
#define COOP_CORE_OPTIONS_H_

#include <optional>

#include "core/base/types.h"

namespace coop {

enum class PolicyKind { kCoop, kDtr, kDte, kLookahead, kSearch };

// Which recomputation DTR charges to a tensor beside its own.
enum class Neighbourhood {
  kExact,       // e*: all evicted tensors reachable through evicted ones.
  kComponents,  // Union-find classes of the direct evicted neighbours.
  kLocal,       // None.
};

struct PlanOptions {
  PolicyKind policy = PolicyKind::kCoop;
  Bytes alignment = 64;  // A power of two; every block is rounded up to it.

  // Coop; each can be switched off alone. Lookahead keeps the window.
  bool sliding_window = true;         // Off: one tensor at a time, as in DTE.
  bool partition = true;              // Cheap right, the others left.
  bool recomputable_in_place = true;  // Overwrite what can be recomputed.
  // Seconds per byte below which an operation is cheap; default: Otsu's split.
  std::optional<double> density_threshold;

  // Every output gets a fresh block while the inputs are still held; nothing
  // is ever taken over. Default: see CopiesOnWrite.
  std::optional<bool> copy_on_write;

  // DTR.
  Neighbourhood dtr_neighbourhood = Neighbourhood::kComponents;
  bool ignore_small = false;  // Skip tensors below 1 % of the average size.
  bool sampling = false;      // Look at about 2 sqrt(n) of n candidates.

  // Search, see SearchOptions and PackingOptions.
  int64_t search_effort = 10'000'000;
  int64_t packing_effort = 200'000'000;
  // The capacity limits the bytes alive at once; the offsets may take more: for
  // a compiler that lays the tensors out itself.
  bool limits_live_bytes = false;
  // Search: keep so few bytes alive wherever no single operation needs more.
  // One operation that needs nearly all of a pool leaves the others room that
  // they need not use; used, it would be room for a compiler to fragment.
  std::optional<Bytes> preferred_bytes;

  uint64_t seed = 0;  // Of DTR's sampling and of the search.

  // Give up when the operations run so far, recomputations included, took this
  // many times what the whole program takes. A plan at a hopeless capacity can
  // otherwise go on for ever, recomputing.
  std::optional<double> overhead_limit;
};

// Cheap and expensive tensors at opposite ends, recomputable in-place.
[[nodiscard]] inline bool LaysOutLikeCoop(const PlanOptions& options) {
  return options.policy == PolicyKind::kCoop ||
         options.policy == PolicyKind::kLookahead;
}

// The baselines, and Coop without recomputable in-place, copy on write.
[[nodiscard]] inline bool CopiesOnWrite(const PlanOptions& options) {
  return options.copy_on_write.value_or(
      !LaysOutLikeCoop(options) || !options.recomputable_in_place);
}

}  // namespace coop

#endif  // COOP_CORE_OPTIONS_H_
