#include "core/schedule/claims.h"

#include <cmath>

namespace coop {
namespace {

void CheckStatistics(const Statistics& claimed, const Statistics& replayed,
                     ViolationLog& log) {
  const auto count = [&](const char* name, int64_t Statistics::*figure) {
    if (replayed.*figure == claimed.*figure) return;
    log.Report(Violation::kStatistics, "`", name, "` is ", replayed.*figure,
               ", claimed ", claimed.*figure);
  };
  count("forced_evictions", &Statistics::forced_evictions);
  count("eager_evictions", &Statistics::eager_evictions);
  count("recomputations", &Statistics::recomputations);
  const auto sum = [&](const char* name, Seconds Statistics::*figure) {
    // In another order they add up to a little more or less.
    const Seconds summed = replayed.*figure;
    if (std::abs(summed - claimed.*figure) <= 1e-9 * summed) return;
    log.Report(Violation::kStatistics, "`", name, "` is ", summed, ", claimed ",
               claimed.*figure);
  };
  sum("compute_seconds", &Statistics::compute_seconds);
  sum("recompute_seconds", &Statistics::recompute_seconds);
}

void CheckLimit(const char* figure, Bytes needed, std::optional<Bytes> limit,
                ViolationLog& log) {
  if (!limit || needed <= *limit) return;
  log.Report(Violation::kLimit, figure, " needs ", needed,
             " bytes, promised were ", *limit);
}

}  // namespace

void CheckClaims(const Schedule& schedule, const Statistics& replayed,
                 const Limits& limits, ViolationLog& log) {
  const Statistics& claimed = schedule.statistics;
  if (replayed.peak_bytes != claimed.peak_bytes) {
    log.Report(Violation::kPeak, "the highest end address is ",
               replayed.peak_bytes, ", claimed ", claimed.peak_bytes);
  }
  const bool claims_live_bytes =
      schedule.has_statistics || claimed.max_live_bytes != kNone;
  if (claims_live_bytes && replayed.max_live_bytes != claimed.max_live_bytes) {
    log.Report(Violation::kLiveBytes, "the most bytes in use at once are ",
               replayed.max_live_bytes, ", claimed ", claimed.max_live_bytes);
  }
  if (schedule.has_statistics) CheckStatistics(claimed, replayed, log);
  CheckLimit("the highest end address", replayed.peak_bytes, limits.pool_bytes,
             log);
  CheckLimit("what is in use at once", replayed.max_live_bytes,
             limits.live_bytes, log);
}

}  // namespace coop
