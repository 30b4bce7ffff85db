// The search for a plan: the whole program is known, so whole plans can be
// compared.
#ifndef COOP_CORE_SEARCH_SEARCH_H_
#define COOP_CORE_SEARCH_SEARCH_H_

#include "core/base/types.h"
#include "core/graph/graph.h"
#include "core/search/gaps.h"
#include "core/search/options.h"

namespace coop {

struct SearchResult {
  GapTable gaps;  // What is decided: `decisions` are by its gaps.
  Decisions decisions;
  Seconds recompute_seconds = 0;
  Bytes peak_bytes = 0;  // The most bytes alive at once.
  int64_t lookups = 0;   // Of SearchOptions::most_lookups.
};

// Decisions that keep at most `capacity` bytes alive, with the least
// recomputation found: cuts chosen greedily by price per byte relieved, from
// several starts, then large neighbourhood search (some of the plan is undone
// and repaired at random, and kept if it is no worse). Then gaps in which
// recomputations ask for a value are parted there, and the search goes on from
// the plan found. If `capacity` is not reached, the peak of the result is above
// it: the least found.
[[nodiscard]] SearchResult SearchDecisions(const Graph& graph, Bytes capacity,
                                           const SearchOptions& options);

// The same where values are also made again early, while what they are made from is
// there.
[[nodiscard]] SearchResult SearchEarlyDecisions(const Graph& graph,
                                                Bytes capacity,
                                                const SearchOptions& options);

// The same from a plan that is known: never worse, if it keeps the capacity.
[[nodiscard]] SearchResult SearchFrom(const Graph& graph, Bytes capacity,
                                      const SearchOptions& options,
                                      const SearchResult& start);

}  // namespace coop

#endif  // COOP_CORE_SEARCH_SEARCH_H_
