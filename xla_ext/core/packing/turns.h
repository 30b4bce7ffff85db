// Ways to improve on packings that take turns until the time is over.
#ifndef COOP_CORE_PACKING_TURNS_H_
#define COOP_CORE_PACKING_TURNS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/types.h"
#include "core/packing/packing.h"
#include "core/packing/problem.h"

namespace coop {

// Packings of the independent parts of a problem. The turns are the same with
// any effort and whatever is enough, only more or fewer of them: what is found
// for less is found for more.
//
// No packing of all parts has a peak below `aim`; one of at most `enough` ends the
// search. Adds to `work` what it did.
[[nodiscard]] std::vector<PackingSolution> SolveInTurns(
    std::span<const PackingProblem> problems, const PackingOptions& options,
    Bytes aim, Bytes enough, const Deadline& deadline, int64_t& work);

}  // namespace coop

#endif  // COOP_CORE_PACKING_TURNS_H_
