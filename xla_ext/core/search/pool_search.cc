#include "core/search/pool_search.h"

#include <algorithm>
#include <limits>
#include <ranges>
#include <utility>

#include "core/graph/bounds.h"
#include "core/search/decisions_of.h"
#include "core/search/live_bytes.h"
#include "core/search/path.h"

namespace coop {
namespace {

// A plan that packs badly is searched again with as much less, so often.
constexpr int kPackingAttempts = 4;
// So many rooms in even steps from the capacity down by a part of it, and then the
// capacity again: where live bytes are the limit, and where what is packed has to
// fit.
constexpr int64_t kRoomsForLiveBytes = 3;
constexpr double kDepthForLiveBytes = 0.05;
constexpr int64_t kRoomsForPacking = 13;
constexpr double kDepthForPacking = 0.13;
// Of the effort, what the path takes, or a plan at any cost, and what each room;
// where there is no plan yet, more.
constexpr Bytes kPartForPath = 8;
constexpr Bytes kPartPerRoom = 16;
constexpr Bytes kPartForEarly = 4;
constexpr Bytes kPartPerRoomWithoutPlan = 12;
// Where a plan is near the bound: other seeds, the part of the effort with each, and
// what of that is for exchanging values.
constexpr int kSeedsNearBound = 4;
constexpr int64_t kPartNearBound = 4;
constexpr int64_t kPartToExchange = 8;
// Rooms that do not depend on the capacity: each so small a part above the one
// below; so many of them, with such a part of the effort.
constexpr Bytes kSharedRoomPart = 32;
constexpr int kSharedRooms = 4;
constexpr Bytes kPartPerSharedRoom = 8;
// Where time decides, of so many plans between two turns through the rooms.
constexpr int kNegotiatedPerRound = 3;
// Between the seeds of whole searches: those of rooms lie between.
constexpr uint64_t kSeedStep = 1'000;
// Those of SearchLive lie beyond all others, which it would change otherwise.
constexpr uint64_t kSeedOfLive = 500'000;
// For a plan at any cost: the same whatever the effort is.
constexpr int64_t kEffortAtAnyCost = 1'250'000;
constexpr int64_t kLookupsAtAnyCost = 9'000'000;
// How often the search goes on from the best plan that packs.
constexpr int kSearchesOfPacked = 2;
// How many results are kept between two turns through the rooms.
constexpr int64_t kMostKnown = 32;

}  // namespace

PoolSearch::PoolSearch(const Graph& graph, Bytes capacity,
                       const PoolSearchOptions& options)
    : graph_(graph),
      capacity_(capacity),
      options_(options),
      plans_(graph, capacity, options_),
      negotiation_(graph, capacity, options_, plans_),
      lookups_left_(options.most_lookups) {}

void PoolSearch::SearchPacked() {
  for (int i = 0; plans_.is_packed() && i < kSearchesOfPacked; ++i) {
    SearchOptions search = options_.search;
    search.common.seed += At(++num_rooms_);
    search.preferred_bytes = std::nullopt;
    plans_.SearchPacked(search);
  }
}

void PoolSearch::SearchAtAnyCost() {
  SearchOptions search = options_.search;
  search.effort = kEffortAtAnyCost;
  search.most_overhead = std::numeric_limits<double>::infinity();
  const int64_t lookups = std::exchange(lookups_left_.here, kLookupsAtAnyCost);
  SearchWith(std::move(search));
  lookups_left_.here = lookups;
}

void PoolSearch::SearchEarly() {
  SearchOptions search = options_.WithPartOfEffort(kPartForEarly);
  search.preferred_bytes = std::nullopt;
  search.most_lookups = lookups_left_.below;
  plans_.Add(SearchEarlyDecisions(graph_, capacity_, search));
  lookups_left_.below -= plans_.known().back().lookups;
  plans_.OfferKnown();
}

uint64_t PoolSearch::NextSeed() {
  return options_.search.common.seed + kSeedStep * ++num_seeds_;
}

// From other seeds: each ends where it cannot get any further by itself.
void PoolSearch::SearchOtherSeeds(int num_seeds) {
  const SearchResult* start = plans_.Start(capacity_);
  // What no search has found so far takes long to look for.
  if (start == nullptr || start->peak_bytes > capacity_) return;
  SearchOptions search = options_.search;
  search.preferred_bytes = std::nullopt;
  for (int i = 0; i < num_seeds && !options_.search.deadline.IsOver(); ++i) {
    search.common.seed = NextSeed();
    plans_.Add(SearchDecisions(graph_, capacity_, search));
    plans_.Add(SearchEarlyDecisions(graph_, capacity_, search));
  }
  plans_.OfferKnown();
}

void PoolSearch::SearchNearBound() {
  const SearchResult* start = plans_.Start(capacity_);
  if (start == nullptr || start->peak_bytes > capacity_) return;
  SearchOptions search = options_.WithPartOfEffort(kPartNearBound);
  search.preferred_bytes = std::nullopt;
  search.part_to_exchange = 1;
  plans_.Add(SearchFrom(graph_, capacity_, search, *start));
  search.part_to_exchange = kPartToExchange;
  for (int i = 0; i < kSeedsNearBound && !options_.search.deadline.IsOver(); ++i) {
    search.common.seed = NextSeed();
    plans_.Add(SearchDecisions(graph_, capacity_, search));
  }
  plans_.OfferKnown();
}

void PoolSearch::SearchLive() {
  const uint64_t seed = options_.search.common.seed + kSeedOfLive;
  SearchLiveBytes(graph_, capacity_, options_, seed + At(num_live_++) * kSeedStep, plans_);
}

// Half of the effort is for plans to start from: with too little of it the ones that
// keep the fewest bytes are not reached. Another seed would find the same: it goes on
// from the best of them.
void PoolSearch::Search() {
  SearchOptions search = options_.search;
  SearchWith(search);
  for (int i = 1; i < options_.most_searches; ++i) {
    const SearchResult start = *plans_.Start(capacity_);
    if (start.peak_bytes <= capacity_) return;
    if (search.effort == 0 || options_.search.deadline.IsOver()) return;
    if (lookups_left_.IsSpent()) return;
    search.common.seed = NextSeed();
    SearchWith(search, &start);
  }
}

void PoolSearch::SearchWith(SearchOptions search, const SearchResult* start) {
  Bytes live_capacity = capacity_;
  for (int attempt = 0; attempt < kPackingAttempts; ++attempt) {
    if (const auto left = options_.search.deadline.SecondsLeft()) {
      search.deadline = Deadline(*left / 2);  // The rest is to pack it.
    }
    search.most_lookups = lookups_left_.here;
    SearchResult found = start == nullptr
                             ? SearchDecisions(graph_, live_capacity, search)
                             : SearchFrom(graph_, live_capacity, search, *start);
    lookups_left_.here -= found.lookups;
    if (found.peak_bytes > live_capacity) {
      plans_.Add(std::move(found));
      return;
    }
    const Bytes above = plans_.Write(found).statistics.peak_bytes - capacity_;
    const bool fits = plans_.TakeWritten(found);
    plans_.Add(std::move(found));
    if (fits) return;
    live_capacity -= RoundUp(above, search.common.alignment);
    search.effort /= 2;
  }
}

void PoolSearch::SearchBelow() {
  SearchOptions path = options_.WithPartOfEffort(kPartForPath);
  path.most_lookups = lookups_left_.below;
  const GapTable gaps(graph_);
  for (SearchPlan& plan : PathOfPlans(graph_, gaps, capacity_, path)) {
    plans_.Add({.gaps = gaps,
                .decisions = std::move(plan.decisions),
                .recompute_seconds = plan.recompute_seconds,
                .peak_bytes = plan.peak_bytes});
  }
  for (const Bytes room : Rooms()) {
    if (options_.search.deadline.IsOver()) break;
    if (!best() && lookups_left_.IsSpent()) break;
    SearchRoom(room);
  }
  plans_.OfferKnown();
  if (!best()) {
    SearchSharedRooms();
    plans_.OfferKnown();
  }
}

// Which do not depend on the capacity: where one has a plan, every capacity near by
// has it, too.
void PoolSearch::SearchSharedRooms() {
  SearchOptions search = options_.WithPartOfEffort(kPartPerSharedRoom);
  search.preferred_bytes = std::nullopt;
  const Bytes least =
      FindLowerBound(graph_, search.common.alignment).bytes;
  std::vector<Bytes> rooms;
  for (Bytes room = least; room <= capacity_;
       room += std::max<Bytes>(1, room / kSharedRoomPart)) {
    rooms.push_back(room);
  }
  std::ranges::reverse(rooms);
  for (const Bytes room : rooms | std::views::take(kSharedRooms)) {
    if (options_.search.deadline.IsOver() || lookups_left_.below < 0) return;
    search.most_lookups = lookups_left_.below;
    SearchResult found = SearchDecisions(graph_, room, search);
    lookups_left_.below -= found.lookups;
    if (found.peak_bytes > capacity_) continue;
    plans_.Add(std::move(found));
    return;
  }
}

void PoolSearch::Continue(const Deadline& deadline, Seconds enough,
                          int64_t most_rounds) {
  options_.search.deadline = deadline;
  const std::vector<Bytes> rooms = Rooms();
  for (int64_t i = 0; i < most_rounds && !deadline.IsOver(); ++i) {
    if (plans_.known().empty()) SearchAgain();
    lookups_left_.below = options_.most_lookups.below;
    for (const Bytes room : rooms) {
      if (!deadline.IsOver() && lookups_left_.below > 0) SearchRoom(room);
    }
    SearchOtherSeeds(1);
    SearchLive();
    negotiation_.Run(kNegotiatedPerRound);
    SearchPacked();
    if (best() && best()->statistics.recompute_seconds <= enough) return;
    plans_.KeepFirst(kMostKnown);
  }
}

// With another seed.
void PoolSearch::SearchAgain() {
  lookups_left_.here = options_.most_lookups.here;
  SearchOptions search = options_.search;
  search.common.seed += At(++num_rooms_);
  SearchWith(std::move(search));
}

std::vector<Bytes> PoolSearch::Rooms() const {
  const bool packs = !options_.limits_live_bytes;
  const int64_t num_rooms = packs ? kRoomsForPacking : kRoomsForLiveBytes;
  const double depth = packs ? kDepthForPacking : kDepthForLiveBytes;
  std::vector<Bytes> rooms;
  for (int64_t i = 0; i < num_rooms; ++i) {
    const double part = 1 - depth * static_cast<double>(i) /
                                static_cast<double>(num_rooms - 1);
    rooms.push_back(static_cast<Bytes>(static_cast<double>(capacity_) * part));
  }
  rooms.push_back(capacity_);
  return rooms;
}

// From the best that is known for it.
void PoolSearch::SearchRoom(Bytes room) {
  const SearchResult* start = plans_.Start(room);
  if (start == nullptr) return;
  SearchOptions search =
      options_.WithPartOfEffort(best() ? kPartPerRoom : kPartPerRoomWithoutPlan);
  search.preferred_bytes = std::nullopt;
  search.common.seed += At(++num_rooms_);
  search.most_lookups = lookups_left_.below;
  plans_.Add(SearchFrom(graph_, room, search, *start));
  lookups_left_.below -= plans_.known().back().lookups;
}

void PoolSearch::SearchFromSchedule(const Schedule& schedule) {
  GapTable gaps(graph_);
  Decisions decisions = DecisionsOf(graph_, gaps, schedule);
  SearchResult start{.gaps = std::move(gaps), .decisions = std::move(decisions)};
  plans_.Add(
      SearchFrom(graph_, capacity_, options_.WithPartOfEffort(kPartForPath), start));
  plans_.OfferKnown();
}

}  // namespace coop
