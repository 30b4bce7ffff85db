#include "core/search/pool_plans.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

namespace coop {
namespace {

// Of the effort for packing, what each of the other plans gets, the quickest
// first, and how many of them.
constexpr int64_t kPackingPart = 8;
constexpr int64_t kMostPacked = 40;
// What packs but for so small a part of the capacity is packed with other seeds, so
// many in all.
constexpr Bytes kNearlyFits = 256;
constexpr uint64_t kPackingSeeds = 3;
// Of the seconds that are left, what one packing may take.
constexpr double kPackingPartOfSeconds = 0.3;

}  // namespace

PoolPlans::PoolPlans(const Graph& graph, Bytes capacity,
                     const PoolSearchOptions& options)
    : graph_(graph), capacity_(capacity), options_(options) {}

void PoolPlans::KeepFirst(int64_t num_known) {
  if (std::ssize(known_) <= num_known) return;
  known_.erase(known_.begin() + num_known, known_.end());
}

const SearchResult* PoolPlans::Start(Bytes room) const {
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

bool PoolPlans::IsBetter(const SearchResult& found) const {
  return !best_ ||
         found.recompute_seconds < best_->statistics.recompute_seconds;
}

const Schedule& PoolPlans::Write(const SearchResult& found) {
  for (uint64_t seed = 0; seed < kPackingSeeds; ++seed) {
    WriteWith(found, options_.packing_effort, seed);
    const Bytes above = written_.schedule.statistics.peak_bytes - capacity_;
    if (options_.limits_live_bytes || above <= 0) break;
    if (above > capacity_ / kNearlyFits) break;
  }
  return written_.schedule;
}

const Schedule& PoolPlans::WriteQuickly(const SearchResult& found) {
  WriteWith(found, options_.packing_effort / kPackingPart, 0);
  return written_.schedule;
}

void PoolPlans::WriteWith(const SearchResult& found, int64_t packing_effort,
                          uint64_t seed) {
  std::optional<double> seconds = options_.search.deadline.SecondsLeft();
  if (seconds) *seconds *= kPackingPartOfSeconds;
  const bool is_live = options_.limits_live_bytes;
  written_ = WritePlan(
      graph_, found,
      {.alignment = options_.search.common.alignment,
       .effort = packing_effort,
       .seconds = seconds,
       .seed = options_.search.common.seed + seed,
       .target_peak_bytes = is_live ? 0 : capacity_},
      is_live ? std::numeric_limits<Bytes>::max() : capacity_);
}

bool PoolPlans::TakeWritten(const SearchResult& found) {
  if (!options_.limits_live_bytes) {
    if (written_.schedule.statistics.peak_bytes > capacity_) return false;
    written_.schedule.capacity = capacity_;
    best_packed_ = {.found = found,
                    .places = std::move(written_.places),
                    .schedule = written_.schedule};
  }
  best_ = std::move(written_.schedule);
  return true;
}

void PoolPlans::SearchPacked(const SearchOptions& search) {
  SearchPackedPlans(graph_, capacity_, search, *best_packed_);
  best_ = best_packed_->schedule;
}

void PoolPlans::OfferKnown() {
  std::erase_if(known_, [&](const SearchResult& known) {
    return known.peak_bytes > capacity_;
  });
  std::ranges::stable_sort(known_, {}, &SearchResult::recompute_seconds);
  const auto equal = std::ranges::unique(known_, {}, [](const auto& known) {
    return std::pair(known.recompute_seconds, known.peak_bytes);
  });
  known_.erase(equal.begin(), equal.end());
  int64_t num_packed = 0;
  for (const SearchResult& known : known_) {
    if (!IsBetter(known)) return;
    const auto figures = std::pair(known.recompute_seconds, known.peak_bytes);
    if (!has_packed_.insert(figures).second) continue;
    if (++num_packed > kMostPacked) return;
    if (options_.search.deadline.IsOver() && num_packed > 1) return;
    if (options_.limits_live_bytes) {
      Write(known);
    } else {
      WriteQuickly(known);
    }
    if (TakeWritten(known)) return;
  }
}

}  // namespace coop
