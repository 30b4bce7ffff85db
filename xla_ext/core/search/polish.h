// Polish: makes a plan of the search a local optimum.
#ifndef COOP_CORE_SEARCH_POLISH_H_
#define COOP_CORE_SEARCH_POLISH_H_

#include <cstdint>
#include <vector>

#include "core/search/fills.h"
#include "core/search/plan.h"
#include "core/search/repair.h"

namespace coop {

// How far, relatively, a repair may be worse than the plan it starts from: what it drops
// may pay only once others are kept, in the room that makes or for what is made again.
inline constexpr double kMostWorse = 1.5;
// The most gaps that a plan is polished by keeping, one after the other.
inline constexpr int kMostPolished = 200;

// What the plan recomputes, which `repairer` evaluated last.
std::vector<Fill> DearestFirst(Repairer& repairer, const SearchPlan& plan);

// Keeps, dearest first, every value that the capacity has room for.
void Polish(Repairer& repairer, SearchPlan& plan);

// In turns keeps one value, the dearest first, and drops cheaper ones for it, and drops
// one, the cheapest for its bytes first, and keeps dearer ones in its place; for as long
// as that helps or until no more than so much effort is left.
void Exchange(Repairer& repairer, SearchPlan& plan, int64_t effort_at_end);

}  // namespace coop

#endif  // COOP_CORE_SEARCH_POLISH_H_
