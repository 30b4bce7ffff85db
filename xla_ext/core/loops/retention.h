// Retention: which values of a loop's body to keep for its gradient, and which to
// make again.
#ifndef COOP_CORE_LOOPS_RETENTION_H_
#define COOP_CORE_LOOPS_RETENTION_H_

#include <cstdint>
#include <vector>

#include "core/base/types.h"

namespace coop {

// Equations in execution order. Equation i reads
// operands[operands_ptr[i], operands_ptr[i + 1]).
struct RetentionProblem {
  std::vector<Bytes> value_bytes;  // That keeping each value takes.
  std::vector<OpIdx> value_maker;  // The equation that makes it; kNone: given.
  std::vector<Seconds> equation_seconds;
  std::vector<uint8_t> equation_may_run_again;
  std::vector<int64_t> operands_ptr;
  std::vector<int64_t> operands;
  std::vector<int64_t> needed;  // The values that must be there afterwards.
  Seconds seconds_per_byte = 0;  // Of keeping: writing and reading.
};

// One way to have the values that are needed.
struct Retention {
  Bytes kept_bytes = 0;
  std::vector<int64_t> kept;      // Values, in ascending order.
  std::vector<OpIdx> recomputed;  // Equations, in ascending order.
};

// Throws std::invalid_argument, naming the entry at fault, for arrays that do not
// fit together, indices that are out of range, equations that read what is made
// later, negative numbers, and bytes or seconds that add up to more than kMostBytes
// or kMostSeconds. The message begins with `function`, the name of what was given
// the problem.
void CheckRetention(const char* function, const RetentionProblem& problem);

}  // namespace coop

#endif  // COOP_CORE_LOOPS_RETENTION_H_
