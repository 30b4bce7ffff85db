#include "core/schedule/violation.h"

namespace coop {

const char* Name(Violation violation) {
  switch (violation) {
    case Violation::kMalformed: return "malformed";
    case Violation::kOrder: return "order";
    case Violation::kNotRecomputable: return "not_recomputable";
    case Violation::kMissingOperand: return "missing_operand";
    case Violation::kOverwritten: return "overwritten";
    case Violation::kPlacement: return "placement";
    case Violation::kOutOfRange: return "out_of_range";
    case Violation::kAlignment: return "alignment";
    case Violation::kOverlap: return "overlap";
    case Violation::kTakeOver: return "take_over";
    case Violation::kNotResident: return "not_resident";
    case Violation::kPinned: return "pinned";
    case Violation::kMissingOutput: return "missing_output";
    case Violation::kPeak: return "peak";
    case Violation::kLiveBytes: return "live_bytes";
    case Violation::kStatistics: return "statistics";
    case Violation::kLimit: return "limit";
  }
  return "unknown";
}

}  // namespace coop
