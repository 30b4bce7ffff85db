#include "core/search/live_bytes.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "core/graph/bounds.h"
#include "core/search/search.h"

namespace coop {
namespace {

// How often the bytes between are halved.
constexpr int kHalvings = 5;
// Where nothing packs yet, what is tried lies above such a part of the capacity.
constexpr double kLeastPart = 0.9;
// Packing that costs no more than such a part of the program's seconds is good enough.
constexpr double kNegligible = 0.0002;

// From the best plan known for it, or anew with early runs: the better of both.
SearchResult SearchRoom(const Graph& graph, Bytes room, const SearchOptions& search,
                        const SearchResult& start) {
  SearchResult found = SearchFrom(graph, room, search, start);
  SearchResult early = SearchEarlyDecisions(graph, room, search);
  const auto rank = [&](const SearchResult& result) {
    return std::pair(result.peak_bytes > room, result.recompute_seconds);
  };
  return rank(early) < rank(found) ? std::move(early) : std::move(found);
}

}  // namespace

void SearchLiveBytes(const Graph& graph, Bytes capacity,
                     const PoolSearchOptions& options, uint64_t seed,
                     PoolPlans& plans) {
  const SearchResult* quickest = plans.Start(capacity);
  if (options.limits_live_bytes || quickest == nullptr) return;
  // What no search has found so far takes long to look for.
  if (quickest->peak_bytes > capacity) return;
  Bytes packs = std::max(FindLowerBound(graph, options.search.common.alignment).bytes,
                         static_cast<Bytes>(kLeastPart * static_cast<double>(capacity)));
  if (plans.best()) {
    const Statistics& best = plans.best()->statistics;
    const Seconds more = best.recompute_seconds - quickest->recompute_seconds;
    if (more <= kNegligible * best.compute_seconds) return;
    packs = std::max(packs, best.max_live_bytes);
  }
  Bytes fails = capacity;
  SearchOptions search = options.search;
  search.preferred_bytes = std::nullopt;
  search.common.seed = seed;
  for (int i = 0; i < kHalvings && !search.deadline.IsOver(); ++i) {
    const Bytes room = packs + (fails - packs) / 2;
    ++search.common.seed;
    SearchResult found = SearchRoom(graph, room, search, *plans.Start(room));
    // One that is no better needs more room to be.
    if (found.peak_bytes > room || !plans.IsBetter(found)) {
      packs = room;
      continue;
    }
    plans.Write(found);
    (plans.TakeWritten(found) ? packs : fails) = room;
    plans.Add(std::move(found));
  }
}

}  // namespace coop
