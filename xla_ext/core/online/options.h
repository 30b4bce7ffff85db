// The options of the policies that decide online.
#ifndef COOP_CORE_ONLINE_OPTIONS_H_
#define COOP_CORE_ONLINE_OPTIONS_H_

#include <optional>

#include "core/base/common_options.h"

namespace coop {

enum class OnlinePolicy { kCoop, kDtr, kDte, kLookahead };

// Of Coop; each can be switched off alone. Of lookahead too, which always has
// the window.
struct CoopOptions {
  bool sliding_window = true;         // Off: one tensor at a time, as in DTE.
  bool partition = true;              // Cheap right, the others left.
  bool recomputable_in_place = true;  // Overwrite what can be recomputed.
  // Seconds per byte below which an operation is cheap; default: Otsu's split.
  std::optional<double> density_threshold;
};

// Which recomputation DTR charges to a tensor beside its own.
enum class Neighbourhood {
  kExact,       // e*: all evicted tensors reachable through evicted ones.
  kComponents,  // Union-find classes of the direct evicted neighbours.
  kLocal,       // None.
};

struct DtrOptions {
  Neighbourhood neighbourhood = Neighbourhood::kComponents;
  bool ignore_small = false;  // Skip tensors below 1 % of the average size.
  bool sampling = false;      // Look at about 2 sqrt(n) of n candidates.
};

struct OnlineOptions {
  OnlinePolicy policy = OnlinePolicy::kCoop;
  CommonOptions common;
  // Every output gets a fresh block while the inputs are still held; nothing
  // is ever taken over. Default: see CopiesOnWrite.
  std::optional<bool> copy_on_write;
  CoopOptions coop;
  DtrOptions dtr;
};

// Cheap and expensive tensors at opposite ends, recomputable in-place.
[[nodiscard]] inline bool LaysOutLikeCoop(const OnlineOptions& options) {
  return options.policy == OnlinePolicy::kCoop ||
         options.policy == OnlinePolicy::kLookahead;
}

// The baselines, and Coop without recomputable in-place, copy on write.
[[nodiscard]] inline bool CopiesOnWrite(const OnlineOptions& options) {
  return options.copy_on_write.value_or(!LaysOutLikeCoop(options) ||
                                        !options.coop.recomputable_in_place);
}

}  // namespace coop

#endif  // COOP_CORE_ONLINE_OPTIONS_H_
