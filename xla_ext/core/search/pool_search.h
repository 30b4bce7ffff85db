// The search in a pool: decisions by live bytes, and a packing of what they keep.
#ifndef COOP_CORE_SEARCH_POOL_SEARCH_H_
#define COOP_CORE_SEARCH_POOL_SEARCH_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/types.h"
#include "core/graph/graph.h"
#include "core/schedule/schedule.h"
#include "core/search/negotiation.h"
#include "core/search/options.h"
#include "core/search/pool_plans.h"

namespace coop {

class PoolSearch {
 public:
  // `graph` must outlive the search.
  PoolSearch(const Graph& graph, Bytes capacity,
             const PoolSearchOptions& options);
  PoolSearch(const PoolSearch&) = delete;
  PoolSearch& operator=(const PoolSearch&) = delete;

  // The best schedule so far that keeps the capacity.
  [[nodiscard]] const std::optional<Schedule>& best() const { return plans_.best(); }

  // Of most_lookups.
  [[nodiscard]] const Lookups& lookups_left() const { return lookups_left_; }

  // The search, with less room for live bytes where packing takes more than there
  // is, by as much. Done again while no plan keeps the capacity, each time from
  // another seed.
  void Search();

  // The same for a plan at any cost, with a part of the effort, where there is no
  // other.
  void SearchAtAnyCost();

  // The same where values may be made again early, with a part of the effort.
  void SearchEarly();

  // Both searches again from so many other seeds, if the live bytes of any plan so far
  // fit.
  void SearchOtherSeeds(int num_seeds);

  // From the best known and from a few other seeds, with a part of the effort and an
  // exchange of values at the end, if the live bytes of any plan so far fit.
  void SearchNearBound();

  // With less room for live bytes, as much of it as still packs.
  void SearchLive();

  // From the quickest of what is known on, of so many plans.
  void Negotiate(int most_plans) { negotiation_.Run(most_plans); }

  // From plans on a path down to the capacity and below, in several rooms: a plan
  // for less room is one for more, and may be better than what was found for
  // more, or pack where that does not. With a part of the effort.
  void SearchBelow();

  // From what is known, in the same rooms again and again, until `deadline`, so many
  // rounds, or a plan that recomputes no more than `enough`.
  void Continue(const Deadline& deadline, Seconds enough, int64_t most_rounds);

  // From the best plan that packs on, from one that packs to the next.
  void SearchPacked();

  // From a plan of another planner, with the same part of the effort.
  void SearchFromSchedule(const Schedule& schedule);

 private:
  // Goes on from `start`, unless it is nullptr.
  void SearchWith(SearchOptions search, const SearchResult* start = nullptr);
  [[nodiscard]] std::vector<Bytes> Rooms() const;
  // None is given twice.
  [[nodiscard]] uint64_t NextSeed();
  void SearchAgain();
  void SearchRoom(Bytes room);
  void SearchSharedRooms();

  const Graph& graph_;
  const Bytes capacity_;
  PoolSearchOptions options_;
  PoolPlans plans_;
  Negotiation negotiation_;
  int64_t num_rooms_ = 0;   // That were searched.
  int64_t num_live_ = 0;    // Of SearchLive.
  uint64_t num_seeds_ = 0;  // Other ones, that were searched from.
  Lookups lookups_left_;
};

}  // namespace coop

#endif  // COOP_CORE_SEARCH_POOL_SEARCH_H_
