#include "core/search/packed_plans.h"

#include <limits>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/packing/refit.h"
#include "core/search/rollout.h"

namespace coop {
namespace {

// What fitting the blocks of one plan in may look at: so many pairs of each block.
constexpr int64_t kPairsPerBlock = 1'000;
// In the time of one execution that is rolled out.
constexpr int64_t kPairsPerEffort = 50;
// To fit a plan in that other ways to pack do not, to one of their elementary steps.
constexpr int64_t kPairsPerStep = 3;
// These get such a part of the effort first.
constexpr int64_t kPartOfOtherWays = 4;

Places PlacesOf(std::span<const BlockName> names, const Packing& packing) {
  return {.names = {names.begin(), names.end()}, .offsets = packing.offsets};
}

using PlaceOf = std::map<BlockName, Offset>;

PlaceOf Index(const Places& places) {
  PlaceOf place_of;
  for (size_t i = 0; i < places.names.size(); ++i) {
    place_of[places.names[i]] = places.offsets[i];
  }
  return place_of;
}

class PackedPlans {
 public:
  PackedPlans(const Graph& graph, Bytes capacity, const SearchOptions& options,
              PackedPlan& best)
      : graph_(graph),
        capacity_(capacity),
        alignment_(options.common.alignment),
        seed_(options.common.seed),
        place_of_(Index(best.places)),
        best_(best) {}

  bool Accepts(const GapTable& gaps, const Decisions& decisions,
               int64_t& effort) {
    Rollout rollout(graph_, gaps, alignment_);
    rollout.Run(decisions);
    effort += std::ssize(rollout.executions());
    const bool is_best =
        rollout.recompute_seconds() < best_.found.recompute_seconds;
    bool accepts = false;
    Places places;
    const auto pack = [&](std::span<const PackingBlock> blocks,
                          std::span<const BlockName> names) {
      std::optional<Packing> packing = Fit(blocks, names, effort);
      accepts = packing.has_value();
      if (accepts) places = PlacesOf(names, *packing);
      // Of the others nobody asks for a schedule.
      return is_best ? std::move(packing) : std::nullopt;
    };
    auto schedule = MakeStaticSchedule(graph_, gaps, rollout, alignment_, pack);
    if (accepts) place_of_ = Index(places);
    if (schedule) {
      schedule->capacity = capacity_;
      best_ = {.found = {.gaps = gaps,
                         .decisions = decisions,
                         .recompute_seconds = rollout.recompute_seconds(),
                         .peak_bytes = rollout.peak_bytes()},
               .places = std::move(places),
               .schedule = *std::move(schedule)};
    }
    return accepts;
  }

 private:
  std::optional<Packing> Fit(std::span<const PackingBlock> blocks,
                             std::span<const BlockName> names,
                             int64_t& effort) {
    std::vector<Offset> wished;
    for (const BlockName& name : names) {
      const auto place = place_of_.find(name);
      wished.push_back(place == place_of_.end() ? kNone : place->second);
    }
    int64_t pairs = 0;
    const auto offsets = Refit(blocks, wished,
                               {.alignment = alignment_,
                                .capacity = capacity_,
                                .effort = kPairsPerBlock * std::ssize(blocks),
                                .seed = ++seed_},
                               pairs);
    effort += pairs / kPairsPerEffort;
    if (!offsets) return std::nullopt;
    return PackingAt(*offsets, blocks, alignment_);
  }

  const Graph& graph_;
  const Bytes capacity_;
  const Bytes alignment_;
  uint64_t seed_;
  PlaceOf place_of_;  // Of the last plan that packed.
  PackedPlan& best_;
};

}  // namespace

WrittenPlan WritePlan(const Graph& graph, const SearchResult& found,
                      const PackingOptions& options, Bytes capacity) {
  Rollout rollout(graph, found.gaps, options.alignment);
  rollout.Run(found.decisions);
  WrittenPlan written;
  const auto pack = [&](std::span<const PackingBlock> blocks,
                        std::span<const BlockName> names) {
    PackingOptions first = options;
    if (capacity < std::numeric_limits<Bytes>::max()) {
      first.effort /= kPartOfOtherWays;
      if (first.seconds) *first.seconds /= 2;
    }
    Packing packing = Pack(blocks, first);
    if (packing.peak_bytes > capacity && packing.lower_bound_bytes <= capacity) {
      int64_t pairs = 0;
      const auto offsets =
          Refit(blocks, packing.offsets,
                {.alignment = options.alignment,
                 .capacity = capacity,
                 .effort = kPairsPerStep * options.effort,
                 .seed = options.seed,
                 .seconds = first.seconds},
                pairs);
      if (offsets) packing = PackingAt(*offsets, blocks, options.alignment);
    }
    written.places = PlacesOf(names, packing);
    return std::optional(std::move(packing));
  };
  written.schedule = *MakeStaticSchedule(graph, found.gaps, rollout,
                                         options.alignment, pack);
  return written;
}

void SearchPackedPlans(const Graph& graph, Bytes capacity,
                       const SearchOptions& options, PackedPlan& plan) {
  PackedPlans plans(graph, capacity, options, plan);
  const SearchResult start = plan.found;
  SearchOptions accepting = options;
  accepting.accepts = [&](const GapTable& gaps, const Decisions& decisions,
                          int64_t& effort) {
    return plans.Accepts(gaps, decisions, effort);
  };
  (void)SearchFrom(graph, capacity, accepting, start);
}

}  // namespace coop
