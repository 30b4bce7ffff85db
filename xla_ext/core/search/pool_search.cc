#include "core/search/pool_search.h"

#include <algorithm>
#include <limits>
#include <ranges>
#include <utility>

#include "core/graph/bounds.h"
#include "core/search/bytes_above.h"
#include "core/search/decisions_of.h"
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
// Rooms that do not depend on the capacity: each so small a part above the one
// below; so many of them, with such a part of the effort.
constexpr Bytes kSharedRoomPart = 32;
constexpr int kSharedRooms = 4;
constexpr Bytes kPartPerSharedRoom = 8;
// How often packing says where a plan takes too much, and the search mends that
// with such a part of the effort.
constexpr Bytes kPartPerTalk = 32;
constexpr int kRoundsOfTalk = 24;
// It ends after so many rounds that pack no better than the best before.
constexpr int kStaleRoundsOfTalk = 8;
// Where time decides, of so many plans between two turns through the rooms.
constexpr int kNegotiatedPerRound = 3;
// What packs is searched again where as much is kept back, with such a part of the
// effort, so often.
constexpr Bytes kPartPerRefinement = 8;
constexpr int kRefinements = 6;
// What it then keeps less, in parts of that: at first little.
constexpr Bytes kPartOfExcess = 8;
constexpr Bytes kPartOfExcessThen = 2;
// Of the effort for packing, what each of the other plans gets, the quickest
// first, and how many of them.
constexpr int64_t kPackingPart = 8;
constexpr int64_t kMostPacked = 40;
// Between the seeds of whole searches: those of rooms lie between.
constexpr uint64_t kSeedStep = 1'000;
// For a plan at any cost: the same whatever the effort is.
constexpr int64_t kEffortAtAnyCost = 1'250'000;
constexpr int64_t kLookupsAtAnyCost = 15'000'000;
// How often the search goes on from the best plan that packs.
constexpr int kSearchesOfPacked = 2;
// How many results are kept between two turns through the rooms.
constexpr int64_t kMostKnown = 32;
// Of the seconds that are left, what one packing may take.
constexpr double kPackingPartOfSeconds = 0.3;

}  // namespace

PoolSearch::PoolSearch(const Graph& graph, Bytes capacity,
                       const PoolSearchOptions& options)
    : graph_(graph),
      capacity_(capacity),
      options_(options),
      lookups_left_(options.most_lookups) {}

SearchOptions PoolSearch::WithPartOfEffort(Bytes parts) const {
  SearchOptions options = options_.search;
  options.effort /= parts;
  return options;
}

void PoolSearch::Write(const SearchResult& found, int64_t packing_effort) {
  std::optional<double> seconds = options_.search.deadline.SecondsLeft();
  if (seconds) *seconds *= kPackingPartOfSeconds;
  const bool is_live = options_.limits_live_bytes;
  written_ = WritePlan(
      graph_, found,
      {.alignment = options_.search.common.alignment,
       .effort = packing_effort,
       .seconds = seconds,
       .seed = options_.search.common.seed,
       .target_peak_bytes = is_live ? 0 : capacity_},
      is_live ? std::numeric_limits<Bytes>::max() : capacity_);
}

// As the best.
void PoolSearch::TakeWritten(const SearchResult& found) {
  if (!options_.limits_live_bytes) {
    written_.schedule.capacity = capacity_;
    best_packed_ = {.found = found,
                    .places = std::move(written_.places),
                    .schedule = written_.schedule};
  }
  best_ = std::move(written_.schedule);
}

void PoolSearch::SearchPacked() {
  for (int i = 0; best_packed_ && i < kSearchesOfPacked; ++i) {
    SearchOptions search = WithPartOfEffort(1);
    search.common.seed += At(++num_rooms_);
    search.preferred_bytes = std::nullopt;
    SearchPackedPlans(graph_, capacity_, search, *best_packed_);
    best_ = best_packed_->schedule;
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
  SearchOptions search = WithPartOfEffort(kPartForEarly);
  search.preferred_bytes = std::nullopt;
  search.most_lookups = lookups_left_.below;
  known_.push_back(SearchEarlyDecisions(graph_, capacity_, search));
  lookups_left_.below -= known_.back().lookups;
  OfferKnown();
}

uint64_t PoolSearch::NextSeed() {
  return options_.search.common.seed + kSeedStep * ++num_seeds_;
}

// From other seeds: each ends where it cannot get any further by itself.
void PoolSearch::SearchOtherSeeds(int num_seeds) {
  const SearchResult* start = Start(capacity_);
  // What no search has found so far takes long to look for.
  if (start == nullptr || start->peak_bytes > capacity_) return;
  SearchOptions search = WithPartOfEffort(1);
  search.preferred_bytes = std::nullopt;
  for (int i = 0; i < num_seeds && !options_.search.deadline.IsOver(); ++i) {
    search.common.seed = NextSeed();
    known_.push_back(SearchDecisions(graph_, capacity_, search));
    known_.push_back(SearchEarlyDecisions(graph_, capacity_, search));
  }
  OfferKnown();
}

// Half of the effort is for plans to start from: with too little of it the ones that
// keep the fewest bytes are not reached.
void PoolSearch::Search() {
  SearchOptions search = options_.search;
  for (int i = 0; i < options_.most_searches; ++i) {
    if (i > 0) search.common.seed = NextSeed();
    SearchWith(search);
    if (Start(capacity_)->peak_bytes <= capacity_) return;
    if (search.effort == 0 || options_.search.deadline.IsOver()) return;
    if (lookups_left_.IsSpent()) return;
  }
}

void PoolSearch::SearchWith(SearchOptions search) {
  Bytes live_capacity = capacity_;
  for (int attempt = 0; attempt < kPackingAttempts; ++attempt) {
    if (const auto left = options_.search.deadline.SecondsLeft()) {
      search.deadline = Deadline(*left / 2);  // The rest is to pack it.
    }
    search.most_lookups = lookups_left_.here;
    SearchResult found = SearchDecisions(graph_, live_capacity, search);
    lookups_left_.here -= found.lookups;
    if (found.peak_bytes > live_capacity) {
      known_.push_back(std::move(found));
      return;
    }
    Write(found, options_.packing_effort);
    const Bytes above = written_.schedule.statistics.peak_bytes - capacity_;
    const bool fits = options_.limits_live_bytes || above <= 0;
    if (fits) TakeWritten(found);
    known_.push_back(std::move(found));
    if (fits) return;
    live_capacity -= RoundUp(above, search.common.alignment);
    search.effort /= 2;
  }
}

bool PoolSearch::Offer(const SearchResult& found, int64_t packing_effort) {
  Write(found, packing_effort);
  if (!options_.limits_live_bytes &&
      written_.schedule.statistics.peak_bytes > capacity_) {
    return false;
  }
  TakeWritten(found);
  return true;
}

// The quickest that is known to fit; where none does, the smallest.
const SearchResult* PoolSearch::Start(Bytes room) const {
  const SearchResult* start = nullptr;
  for (const SearchResult& known : known_) {
    const auto rank = [&](const SearchResult& result) {
      const bool fits = result.peak_bytes <= room;
      return std::pair(fits ? 0 : result.peak_bytes,
                       fits ? result.recompute_seconds : 0);
    };
    if (start == nullptr || rank(known) < rank(*start)) start = &known;
  }
  return start;
}

void PoolSearch::SearchBelow() {
  SearchOptions path = WithPartOfEffort(kPartForPath);
  path.most_lookups = lookups_left_.below;
  const GapTable gaps(graph_);
  for (SearchPlan& plan : PathOfPlans(graph_, gaps, capacity_, path)) {
    known_.push_back({.gaps = gaps,
                      .decisions = std::move(plan.decisions),
                      .recompute_seconds = plan.recompute_seconds,
                      .peak_bytes = plan.peak_bytes});
  }
  for (const Bytes room : Rooms()) {
    if (options_.search.deadline.IsOver()) break;
    if (!best_ && lookups_left_.IsSpent()) break;
    SearchRoom(room);
  }
  OfferKnown();
  if (!best_) {
    SearchSharedRooms();
    OfferKnown();
  }
}

// Which do not depend on the capacity: where one has a plan, every capacity near by
// has it, too.
void PoolSearch::SearchSharedRooms() {
  SearchOptions search = WithPartOfEffort(kPartPerSharedRoom);
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
    known_.push_back(std::move(found));
    return;
  }
}

void PoolSearch::Continue(const Deadline& deadline, Seconds enough,
                          int64_t most_rounds) {
  options_.search.deadline = deadline;
  const std::vector<Bytes> rooms = Rooms();
  for (int64_t i = 0; i < most_rounds && !deadline.IsOver(); ++i) {
    if (known_.empty()) SearchAgain();
    lookups_left_.below = options_.most_lookups.below;
    for (const Bytes room : rooms) {
      if (!deadline.IsOver() && lookups_left_.below > 0) SearchRoom(room);
    }
    SearchOtherSeeds(1);
    Negotiate(kNegotiatedPerRound);
    SearchPacked();
    if (best_ && best_->statistics.recompute_seconds <= enough) return;
    if (std::ssize(known_) > kMostKnown) {
      known_.erase(known_.begin() + kMostKnown, known_.end());
    }
  }
}

// With another seed.
void PoolSearch::SearchAgain() {
  lookups_left_.here = options_.most_lookups.here;
  SearchOptions search = options_.search;
  search.common.seed += At(++num_rooms_);
  SearchWith(std::move(search));
}

void PoolSearch::Negotiate(int most_plans) {
  if (options_.limits_live_bytes) return;
  for (int i = 0; i < most_plans && !options_.search.deadline.IsOver(); ++i) {
    const SearchResult* start = Unnegotiated();
    if (start == nullptr || !IsBetter(*start)) return;
    has_negotiated_.emplace(start->recompute_seconds, start->peak_bytes);
    const SearchResult first = *start;
    NegotiateFrom(first, kPartOfExcess);
    NegotiateFrom(first, kPartOfExcessThen);
  }
}

// The quickest that fits and was not negotiated about: another time would go the same
// way.
const SearchResult* PoolSearch::Unnegotiated() const {
  const SearchResult* start = nullptr;
  for (const SearchResult& known : known_) {
    if (known.peak_bytes > capacity_) continue;
    const std::pair figures(known.recompute_seconds, known.peak_bytes);
    if (has_negotiated_.contains(figures)) continue;
    if (start == nullptr || known.recompute_seconds < start->recompute_seconds) {
      start = &known;
    }
  }
  return start;
}

void PoolSearch::NegotiateFrom(SearchResult present, Bytes part) {
  SearchOptions search = WithPartOfEffort(kPartPerTalk);
  search.preferred_bytes = std::nullopt;
  search.reserved.assign(At(graph_.num_ops()) + 1, 0);
  Bytes least = std::numeric_limits<Bytes>::max();
  int num_stale = 0;
  for (int i = 0; i < kRoundsOfTalk && num_stale < kStaleRoundsOfTalk; ++i) {
    if (options_.search.deadline.IsOver() || !IsBetter(present)) return;
    const Bytes peak = WriteAndKeepBack(present, part, search.reserved);
    if (peak <= capacity_) {
      search.effort = options_.search.effort / kPartPerRefinement;
      return Refine(present, part, std::move(search));
    }
    num_stale = peak < least ? 0 : num_stale + 1;
    least = std::min(least, peak);
    ++search.common.seed;
    present = SearchFrom(graph_, capacity_, search, present);
    if (present.peak_bytes > capacity_) return;
    known_.push_back(present);
  }
}

// What keeps as much back as a plan that packs may pack, too.
void PoolSearch::Refine(SearchResult present, Bytes part,
                        SearchOptions search) {
  for (int i = 0; i < kRefinements && !options_.search.deadline.IsOver(); ++i) {
    ++search.common.seed;
    present = SearchFrom(graph_, capacity_, search, present);
    if (present.peak_bytes > capacity_ || !IsBetter(present)) return;
    known_.push_back(present);
    WriteAndKeepBack(present, part, search.reserved);
  }
}

bool PoolSearch::IsBetter(const SearchResult& found) const {
  return !best_ ||
         found.recompute_seconds < best_->statistics.recompute_seconds;
}

// The bytes that a plan takes. It is the best if they fit; if not, a part of what
// is too much is kept back.
Bytes PoolSearch::WriteAndKeepBack(const SearchResult& found, Bytes part,
                                   std::vector<Bytes>& reserved) {
  // What was kept back last need not have changed the plan.
  const bool is_written = found.decisions == negotiated_.decisions &&
                          std::ranges::equal(found.gaps.splits(),
                                             negotiated_.splits);
  if (!is_written) {
    Write(found, options_.packing_effort / kPackingPart);
    const auto splits = found.gaps.splits();
    negotiated_ = {
        .decisions = found.decisions,
        .splits = {splits.begin(), splits.end()},
        .peak_bytes = written_.schedule.statistics.peak_bytes,
        .above = BytesAbove(graph_, written_.schedule, capacity_)};
    if (negotiated_.peak_bytes <= capacity_) TakeWritten(found);
  }
  const Bytes alignment = options_.search.common.alignment;
  for (size_t p = 0; p < negotiated_.above.size(); ++p) {
    reserved[p] += RoundUp(negotiated_.above[p] / part, alignment);
  }
  return negotiated_.peak_bytes;
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
  const SearchResult* start = Start(room);
  if (start == nullptr) return;
  SearchOptions search =
      WithPartOfEffort(best_ ? kPartPerRoom : kPartPerRoomWithoutPlan);
  search.preferred_bytes = std::nullopt;
  search.common.seed += At(++num_rooms_);
  search.most_lookups = lookups_left_.below;
  known_.push_back(SearchFrom(graph_, room, search, *start));
  lookups_left_.below -= known_.back().lookups;
}

void PoolSearch::SearchFromSchedule(const Schedule& schedule) {
  GapTable gaps(graph_);
  Decisions decisions = DecisionsOf(graph_, gaps, schedule);
  SearchResult start{.gaps = std::move(gaps), .decisions = std::move(decisions)};
  known_.push_back(
      SearchFrom(graph_, capacity_, WithPartOfEffort(kPartForPath), start));
  OfferKnown();
}

// The quickest of what is known that packs, if it is quicker than the best.
void PoolSearch::OfferKnown() {
  std::erase_if(known_, [&](const SearchResult& known) {
    return known.peak_bytes > capacity_;
  });
  std::ranges::stable_sort(known_, {}, &SearchResult::recompute_seconds);
  const auto equal = std::ranges::unique(known_, {}, [](const auto& known) {
    return std::pair(known.recompute_seconds, known.peak_bytes);
  });
  known_.erase(equal.begin(), equal.end());
  const int64_t part = options_.limits_live_bytes ? 1 : kPackingPart;
  int64_t num_packed = 0;
  for (const SearchResult& known : known_) {
    if (best_ &&
        known.recompute_seconds >= best_->statistics.recompute_seconds) {
      return;
    }
    const auto figures = std::pair(known.recompute_seconds, known.peak_bytes);
    if (!has_packed_.insert(figures).second) continue;
    if (++num_packed > kMostPacked) return;
    if (options_.search.deadline.IsOver() && num_packed > 1) return;
    if (Offer(known, options_.packing_effort / part)) return;
  }
}

}  // namespace coop
