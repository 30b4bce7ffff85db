#include "core/loops/time_units.h"

#include <algorithm>
#include <cmath>

namespace coop {
namespace {

constexpr int kBitsOfTotal = 50;
constexpr int kMostBitsOfPrice = 60;

}  // namespace

TimeUnits TimeUnitsOf(const RetentionProblem& problem) {
  // Of each equation, the bytes that are kept in the same time.
  std::vector<double> in_bytes;
  double total = 0;
  for (size_t i = 0; i < problem.equation_seconds.size(); ++i) {
    const bool may_run_again = problem.equation_may_run_again[i] != 0;
    in_bytes.push_back(may_run_again ? problem.equation_seconds[i] /
                                           problem.seconds_per_byte
                                     : 0);
    total += in_bytes.back();
  }
  // Keeping a byte takes two to this power units.
  int power = kMostBitsOfPrice;
  if (total > 0) power = std::min(power, kBitsOfTotal - 1 - std::ilogb(total));
  TimeUnits units;
  for (const double bytes : in_bytes) {
    units.of_equation.push_back(std::llround(std::ldexp(bytes, power)));
    units.total += units.of_equation.back();
  }
  if (power >= 0) {
    units.keeping = {int64_t{1} << power, 1};
  } else if (power >= -kMostBitsOfPrice) {
    units.keeping = {1, int64_t{1} << -power};
  }  // Else all bytes together take no more than two units: for nothing.
  return units;
}

}  // namespace coop
