// The search in a pool: decisions by live bytes, and a packing of what they keep.
#ifndef COOP_CORE_SEARCH_POOL_SEARCH_H_
#define COOP_CORE_SEARCH_POOL_SEARCH_H_

#include <cstdint>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/types.h"
#include "core/graph/graph.h"
#include "core/packing/packing.h"
#include "core/schedule/schedule.h"
#include "core/search/options.h"
#include "core/search/packed_plans.h"
#include "core/search/search.h"

namespace coop {

// Until there is a plan: what prices may ask for, to find one at all.
struct Lookups {
  int64_t here = 80'000'000;
  int64_t below = 30'000'000;  // In the rooms below.

  [[nodiscard]] bool IsSpent() const { return here <= 0 || below <= 0; }
};

struct PoolSearchOptions {
  SearchOptions search;
  Lookups most_lookups;
  int64_t packing_effort = 0;
  int most_searches = 1;  // While there is no plan; see Search.
  // The capacity limits the bytes alive; the offsets may take more.
  bool limits_live_bytes = false;
};

class PoolSearch {
 public:
  // `graph` must outlive the search.
  PoolSearch(const Graph& graph, Bytes capacity,
             const PoolSearchOptions& options);

  // The best schedule so far that keeps the capacity.
  [[nodiscard]] const std::optional<Schedule>& best() const { return best_; }

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

  // Packing says where a plan takes more than there is, and the search keeps less
  // there, again and again until it packs. From the quickest of what is known on, of so
  // many plans.
  void Negotiate(int most_plans);

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
  void SearchWith(SearchOptions search);
  [[nodiscard]] SearchOptions WithPartOfEffort(Bytes parts) const;
  // Into `written_`.
  void Write(const SearchResult& found, int64_t packing_effort);
  void TakeWritten(const SearchResult& found);
  // False if it takes too many bytes.
  bool Offer(const SearchResult& found, int64_t packing_effort);
  [[nodiscard]] const SearchResult* Start(Bytes room) const;
  [[nodiscard]] const SearchResult* Unnegotiated() const;
  void NegotiateFrom(SearchResult present, Bytes part);
  void Refine(SearchResult present, Bytes part, SearchOptions search);
  [[nodiscard]] bool IsBetter(const SearchResult& found) const;
  Bytes WriteAndKeepBack(const SearchResult& found, Bytes part,
                         std::vector<Bytes>& reserved);
  [[nodiscard]] std::vector<Bytes> Rooms() const;
  // None is given twice.
  [[nodiscard]] uint64_t NextSeed();
  void SearchAgain();
  void SearchRoom(Bytes room);
  void SearchSharedRooms();
  void OfferKnown();

  const Graph& graph_;
  const Bytes capacity_;
  PoolSearchOptions options_;
  std::vector<SearchResult> known_;
  int64_t num_rooms_ = 0;   // That were searched.
  uint64_t num_seeds_ = 0;  // Other ones, that were searched from.
  Lookups lookups_left_;
  // Figures of those of what is known that were packed, or negotiated about.
  std::set<std::pair<Seconds, Bytes>> has_packed_;
  std::set<std::pair<Seconds, Bytes>> has_negotiated_;
  WrittenPlan written_;
  // The plan that was last negotiated about, and the bytes that are too many.
  struct Negotiated {
    Decisions decisions;
    std::vector<Split> splits;
    Bytes peak_bytes = 0;
    std::vector<Bytes> above;  // By position.
  };
  Negotiated negotiated_;
  std::optional<Schedule> best_;
  std::optional<PackedPlan> best_packed_;  // The same.
};

}  // namespace coop

#endif  // COOP_CORE_SEARCH_POOL_SEARCH_H_
