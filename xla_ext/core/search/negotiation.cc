#include "core/search/negotiation.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/schedule/schedule.h"
#include "core/search/bytes_above.h"

namespace coop {
namespace {

// How often packing says where a plan takes too much, and the search mends that
// with such a part of the effort.
constexpr Bytes kPartPerTalk = 32;
constexpr int kRoundsOfTalk = 24;
// It ends after so many rounds that pack no better than the best before.
constexpr int kStaleRoundsOfTalk = 8;
// What packs is searched again where as much is kept back, with such a part of the
// effort, so often.
constexpr Bytes kPartPerRefinement = 8;
constexpr int kRefinements = 6;
// What it then keeps less, in parts of that: at first little.
constexpr Bytes kPartOfExcess = 8;
constexpr Bytes kPartOfExcessThen = 2;

}  // namespace

Negotiation::Negotiation(const Graph& graph, Bytes capacity,
                         const PoolSearchOptions& options, PoolPlans& plans)
    : graph_(graph), capacity_(capacity), options_(options), plans_(plans) {}

void Negotiation::Run(int most_plans) {
  if (options_.limits_live_bytes) return;
  for (int i = 0; i < most_plans && !options_.search.deadline.IsOver(); ++i) {
    const SearchResult* start = Unnegotiated();
    if (start == nullptr || !plans_.IsBetter(*start)) return;
    has_negotiated_.emplace(start->recompute_seconds, start->peak_bytes);
    const SearchResult first = *start;
    RunFrom(first, kPartOfExcess);
    RunFrom(first, kPartOfExcessThen);
  }
}

// The quickest that fits and was not negotiated about: another time would go the same
// way.
const SearchResult* Negotiation::Unnegotiated() const {
  const SearchResult* start = nullptr;
  for (const SearchResult& known : plans_.known()) {
    if (known.peak_bytes > capacity_) continue;
    const std::pair figures(known.recompute_seconds, known.peak_bytes);
    if (has_negotiated_.contains(figures)) continue;
    if (start == nullptr || known.recompute_seconds < start->recompute_seconds) {
      start = &known;
    }
  }
  return start;
}

void Negotiation::RunFrom(SearchResult present, Bytes part) {
  SearchOptions search = options_.WithPartOfEffort(kPartPerTalk);
  search.preferred_bytes = std::nullopt;
  search.reserved.assign(At(graph_.num_ops()) + 1, 0);
  Bytes least = std::numeric_limits<Bytes>::max();
  int num_stale = 0;
  for (int i = 0; i < kRoundsOfTalk && num_stale < kStaleRoundsOfTalk; ++i) {
    if (options_.search.deadline.IsOver() || !plans_.IsBetter(present)) return;
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
    plans_.Add(present);
  }
}

// What keeps as much back as a plan that packs may pack, too.
void Negotiation::Refine(SearchResult present, Bytes part,
                         SearchOptions search) {
  for (int i = 0; i < kRefinements && !options_.search.deadline.IsOver(); ++i) {
    ++search.common.seed;
    present = SearchFrom(graph_, capacity_, search, present);
    if (present.peak_bytes > capacity_ || !plans_.IsBetter(present)) return;
    plans_.Add(present);
    WriteAndKeepBack(present, part, search.reserved);
  }
}

// The bytes that a plan takes. It is the best if they fit; if not, a part of what
// is too much is kept back.
Bytes Negotiation::WriteAndKeepBack(const SearchResult& found, Bytes part,
                                    std::vector<Bytes>& reserved) {
  // What was kept back last need not have changed the plan.
  const bool is_written = found.decisions == last_.decisions &&
                          std::ranges::equal(found.gaps.splits(), last_.splits);
  if (!is_written) {
    const Schedule& written = plans_.WriteQuickly(found);
    const auto splits = found.gaps.splits();
    last_ = {.decisions = found.decisions,
             .splits = {splits.begin(), splits.end()},
             .peak_bytes = written.statistics.peak_bytes,
             .above = BytesAbove(graph_, written, capacity_)};
    plans_.TakeWritten(found);
  }
  const Bytes alignment = options_.search.common.alignment;
  for (size_t p = 0; p < last_.above.size(); ++p) {
    reserved[p] += RoundUp(last_.above[p] / part, alignment);
  }
  return last_.peak_bytes;
}

}  // namespace coop
