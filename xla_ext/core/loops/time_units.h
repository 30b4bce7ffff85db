// Time units: seconds as integers, so that sums of them are exact, and prices of
// bytes in them.
#ifndef COOP_CORE_LOOPS_TIME_UNITS_H_
#define COOP_CORE_LOOPS_TIME_UNITS_H_

#include <cstdint>
#include <vector>

#include "core/loops/retention.h"

namespace coop {

// So many units of time for so many bytes, each at most 2^61. All bytes of a problem
// are as many at most, all units fewer: a product of a price with either is at most
// 2^122.
struct Price {
  int64_t units = 0;
  int64_t bytes = 1;
};

struct TimeUnits {
  std::vector<int64_t> of_equation;  // 0 for those that may not run again.
  int64_t total = 0;
  Price keeping;  // The time of keeping a byte: a power of two.
};

// All equations that may run again take less than 2^50 units together, with at most
// half a unit more for each from rounding; one that takes less than that part of
// their time may be rounded to nothing. As a time has at most three roundings
// behind it, of up to 2^-53 of itself each, that is less than half a unit: an equation
// that takes as long as keeping some bytes does so in units, too.
[[nodiscard]] TimeUnits TimeUnitsOf(const RetentionProblem& problem);

}  // namespace coop

#endif  // COOP_CORE_LOOPS_TIME_UNITS_H_
