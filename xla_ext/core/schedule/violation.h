// The ways in which a schedule can be wrong, and a log of those found.
#ifndef COOP_CORE_SCHEDULE_VIOLATION_H_
#define COOP_CORE_SCHEDULE_VIOLATION_H_

#include <cstdint>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "core/base/types.h"

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

// The lower-case name without the k: "missing_operand".
[[nodiscard]] const char* Name(Violation violation);

struct ViolationReport {
  Violation violation;
  int64_t step;  // kNone before the first, steps.size() after the last.
  std::string text;
};

// Reports in the order of the steps they are about.
class ViolationLog {
 public:
  // kNone until the first NextStep().
  [[nodiscard]] int64_t step() const { return step_; }
  void NextStep() { ++step_; }

  // The text is all `parts`, printed one after the other.
  template <typename... Parts>
  void Report(Violation violation, const Parts&... parts) {
    std::ostringstream text;
    (text << ... << parts);
    reports_.push_back({violation, step_, text.str()});
  }

  [[nodiscard]] std::vector<ViolationReport> Take() {
    return std::move(reports_);
  }

 private:
  int64_t step_ = kNone;
  std::vector<ViolationReport> reports_;
};

}  // namespace coop

#endif  // COOP_CORE_SCHEDULE_VIOLATION_H_
