// Negotiation: packing says where a plan takes more than there is, and the search keeps
// less there, again and again until it packs.
#ifndef COOP_CORE_SEARCH_NEGOTIATION_H_
#define COOP_CORE_SEARCH_NEGOTIATION_H_

#include <set>
#include <utility>
#include <vector>

#include "core/base/types.h"
#include "core/graph/graph.h"
#include "core/search/gaps.h"
#include "core/search/options.h"
#include "core/search/pool_plans.h"
#include "core/search/search.h"

namespace coop {

class Negotiation {
 public:
  // All of them must outlive it.
  Negotiation(const Graph& graph, Bytes capacity, const PoolSearchOptions& options,
              PoolPlans& plans);

  // From the quickest of what is known on, of so many plans.
  void Run(int most_plans);

 private:
  [[nodiscard]] const SearchResult* Unnegotiated() const;
  void RunFrom(SearchResult present, Bytes part);
  void Refine(SearchResult present, Bytes part, SearchOptions search);
  Bytes WriteAndKeepBack(const SearchResult& found, Bytes part,
                         std::vector<Bytes>& reserved);

  const Graph& graph_;
  const Bytes capacity_;
  const PoolSearchOptions& options_;
  PoolPlans& plans_;
  // Figures of the plans that were started from.
  std::set<std::pair<Seconds, Bytes>> has_negotiated_;
  // The plan that was last packed, and the bytes that are too many.
  struct Written {
    Decisions decisions;
    std::vector<Split> splits;
    Bytes peak_bytes = 0;
    std::vector<Bytes> above;  // By position.
  };
  Written last_;
};

}  // namespace coop

#endif  // COOP_CORE_SEARCH_NEGOTIATION_H_
