// The options of a plan: those of every planner, and those of each.
#ifndef COOP_CORE_OPTIONS_H_
#define COOP_CORE_OPTIONS_H_

#include <cstdint>
#include <optional>

#include "core/base/common_options.h"
#include "core/base/types.h"
#include "core/online/options.h"

namespace coop {

enum class PolicyKind { kCoop, kDtr, kDte, kLookahead, kSearch };

// Of the search, and of the packing of the plan that it finds.
struct PlanSearchOptions {
  int64_t effort = 10'000'000;           // See SearchOptions.
  int64_t packing_effort = 200'000'000;  // See PackingOptions.
  // The capacity limits the bytes alive at once; the offsets may take more: for
  // a compiler that lays the tensors out itself.
  bool limits_live_bytes = false;
  std::optional<Bytes> preferred_bytes;  // See SearchOptions.
  bool any_plan = false;  // The first that is found is good enough.
  // Of all of a plan: it goes on until then, and ends then.
  std::optional<double> seconds = {};
};

struct PlanOptions {
  PolicyKind policy = PolicyKind::kCoop;
  CommonOptions common;
  std::optional<bool> copy_on_write;  // Of the online policies.
  CoopOptions coop;                   // Of lookahead too.
  DtrOptions dtr;
  PlanSearchOptions search;
};

// nullopt: not one of those that decide online.
[[nodiscard]] inline std::optional<OnlinePolicy> AsOnlinePolicy(
    PolicyKind policy) {
  switch (policy) {
    case PolicyKind::kCoop:
      return OnlinePolicy::kCoop;
    case PolicyKind::kDtr:
      return OnlinePolicy::kDtr;
    case PolicyKind::kDte:
      return OnlinePolicy::kDte;
    case PolicyKind::kLookahead:
      return OnlinePolicy::kLookahead;
    case PolicyKind::kSearch:
      break;
  }
  return std::nullopt;
}

// The part that concerns `policy`, whichever `options.policy` is.
[[nodiscard]] inline OnlineOptions OnlineOptionsFor(
    OnlinePolicy policy, const PlanOptions& options) {
  return {.policy = policy,
          .common = options.common,
          .copy_on_write = options.copy_on_write,
          .coop = options.coop,
          .dtr = options.dtr};
}

// Of the search: each of the online policies that it is compared with has its
// own default.
[[nodiscard]] inline bool CopiesOnWrite(const PlanOptions& options) {
  const auto online = AsOnlinePolicy(options.policy);
  return online ? CopiesOnWrite(OnlineOptionsFor(*online, options))
                : options.copy_on_write.value_or(true);
}

}  // namespace coop

#endif  // COOP_CORE_OPTIONS_H_
