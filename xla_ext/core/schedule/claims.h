// The claims of a schedule, and the limits promised for it, against the figures
// of a replay.
#ifndef COOP_CORE_SCHEDULE_CLAIMS_H_
#define COOP_CORE_SCHEDULE_CLAIMS_H_

#include <optional>

#include "core/base/types.h"
#include "core/schedule/schedule.h"
#include "core/schedule/statistics.h"
#include "core/schedule/violation.h"

namespace coop {

// Promised of a schedule by the caller, beside its own claims.
struct Limits {
  std::optional<Bytes> pool_bytes;  // Of the highest end address.
  std::optional<Bytes> live_bytes;  // Of the bytes in use at once.
};

// Of `replayed`: the seconds, evictions, recomputations, peak_bytes and
// max_live_bytes. Counts and bytes must be exactly those claimed; seconds may
// differ by rounding.
void CheckClaims(const Schedule& schedule, const Statistics& replayed,
                 const Limits& limits, ViolationLog& log);

}  // namespace coop

#endif  // COOP_CORE_SCHEDULE_CLAIMS_H_
