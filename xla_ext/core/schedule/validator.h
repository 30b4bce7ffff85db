// Is this schedule right? An independent replay, the oracle of every test.
#ifndef COOP_CORE_SCHEDULE_VALIDATOR_H_
#define COOP_CORE_SCHEDULE_VALIDATOR_H_

#include <optional>
#include <string>
#include <vector>

#include "core/base/types.h"
#include "core/graph/graph.h"
#include "core/schedule/schedule.h"

namespace coop {

enum class Violation {
  kMalformed,         // An index out of range, a table out of order.
  kOrder,             // Not every operation computed once, in program order.
  kNotRecomputable,   // Run again though it may not, or before its first run.
  kMissingOperand,    // Read while not resident.
  kOverwritten,       // Read after it was overwritten for good.
  kPlacement,         // A made tensor without a block, or a block without one.
  kOutOfRange,        // A block outside [0, capacity).
  kAlignment,         // An offset that is not a multiple of the alignment.
  kOverlap,           // Two live blocks share bytes.
  kTakeOver,          // A block taken over where the graph does not allow it.
  kNotResident,       // Evicted or freed while not resident.
  kPinned,            // A pinned tensor dropped or moved.
  kMissingOutput,     // An output that is not resident at the end.
  kPeak,              // The claimed peak is not the highest end address.
  kLiveBytes,         // Not the most bytes in use at once are claimed.
  kStatistics,        // Seconds or counts are claimed that it does not have.
  kLimit,             // It needs more than was promised.
};

// What was promised of a schedule beside what it claims itself.
struct Limits {
  std::optional<Bytes> pool_bytes;  // Of the highest end address.
  std::optional<Bytes> live_bytes;  // Of the bytes in use at once.
};

// The lower-case name without the k: "missing_operand".
[[nodiscard]] const char* Name(Violation violation);

struct ViolationReport {
  Violation violation;
  int64_t step;  // kNone before the first, steps.size() after the last.
  std::string text;
};

// Everything wrong with `schedule`, in the order of its steps; empty if valid.
// Shares no code with the simulator or the pool. O(n log n).
[[nodiscard]] std::vector<ViolationReport> Validate(
    const Graph& graph, const Schedule& schedule, const Limits& limits = {});

}  // namespace coop

#endif  // COOP_CORE_SCHEDULE_VALIDATOR_H_
