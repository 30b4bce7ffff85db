// Frontier: the best ways to keep and to recompute, from the least time to the
// fewest bytes.
#ifndef COOP_CORE_LOOPS_FRONTIER_H_
#define COOP_CORE_LOOPS_FRONTIER_H_

#include <vector>

#include "core/loops/retention.h"

namespace coop {

// The corners of the lower convex hull of kept bytes and seconds over all choices,
// where a choice takes the seconds of what runs again and those of keeping. Each
// has fewer bytes than the one before. Among choices of the same bytes and seconds
// the one that runs least again, which there is only one of. Nearer to the line
// between its neighbours than times are rounded (time_units.h) nothing is a corner:
// bodies that repeat themselves have many choices on a line. `problem` must have
// passed CheckRetention.
//
// For a price of bytes in seconds the best choice is a minimum cut: a value is
// needed (source's side) or not, an equation runs again (source's side) or not. A
// value that is needed and not made cuts the edge of its bytes, an equation that
// runs again that of its seconds; what an equation reads is needed if it runs.
//
// Where bytes cost more, what is needed and what runs again only grows: seconds
// are added up over equations alone, keeping being part of the price of bytes. So
// of two corners the cheaper in bytes contains the other, and between them only
// what they differ in is undecided. The corners are found from both ends: at the
// price at which two of them cost the same, either a third is cheaper, or there is
// none between. Each cut then has the undecided nodes alone.
//
// Source: G. Gallo, M. D. Grigoriadis, R. E. Tarjan, "A fast parametric maximum
// flow algorithm and applications", 1989 (nested cuts and contraction).
[[nodiscard]] std::vector<Retention> RetentionFrontier(
    const RetentionProblem& problem);

}  // namespace coop

#endif  // COOP_CORE_LOOPS_FRONTIER_H_
