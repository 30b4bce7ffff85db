// The plans that a search in a pool knows, what they take when packed, and the best.
#ifndef COOP_CORE_SEARCH_POOL_PLANS_H_
#define COOP_CORE_SEARCH_POOL_PLANS_H_

#include <cstdint>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "core/base/types.h"
#include "core/graph/graph.h"
#include "core/schedule/schedule.h"
#include "core/search/options.h"
#include "core/search/packed_plans.h"
#include "core/search/search.h"

namespace coop {

class PoolPlans {
 public:
  // `graph` and `options` must outlive the plans.
  PoolPlans(const Graph& graph, Bytes capacity, const PoolSearchOptions& options);

  // The best schedule so far that keeps the capacity.
  [[nodiscard]] const std::optional<Schedule>& best() const { return best_; }

  [[nodiscard]] const std::vector<SearchResult>& known() const { return known_; }

  void Add(SearchResult found) { known_.push_back(std::move(found)); }

  // The first of what is known, so many.
  void KeepFirst(int64_t num_known);

  // The quickest that is known to fit; where none does, the smallest. nullptr: nothing
  // is known.
  [[nodiscard]] const SearchResult* Start(Bytes room) const;

  // Whether it recomputes less than the best.
  [[nodiscard]] bool IsBetter(const SearchResult& found) const;

  // The schedule of a plan, packed with the effort for packing, or quickly: until the
  // next is written.
  const Schedule& Write(const SearchResult& found);
  const Schedule& WriteQuickly(const SearchResult& found);

  // What was written last, `found`, as the best. False if it takes too many bytes.
  bool TakeWritten(const SearchResult& found);

  // The quickest of what is known that packs, if it is quicker than the best. What does
  // not keep the capacity is forgotten.
  void OfferKnown();

  // Whether the best is one whose places are known.
  [[nodiscard]] bool is_packed() const { return best_packed_.has_value(); }

  // From the best on, if it is packed, from one that packs to the next.
  void SearchPacked(const SearchOptions& search);

 private:
  void WriteWith(const SearchResult& found, int64_t packing_effort, uint64_t seed);

  const Graph& graph_;
  const Bytes capacity_;
  const PoolSearchOptions& options_;
  std::vector<SearchResult> known_;
  // Figures of those of what is known that were packed.
  std::set<std::pair<Seconds, Bytes>> has_packed_;
  WrittenPlan written_;
  std::optional<Schedule> best_;
  std::optional<PackedPlan> best_packed_;  // The same.
};

}  // namespace coop

#endif  // COOP_CORE_SEARCH_POOL_PLANS_H_
