// Random graphs through every policy and ablation, the validator as oracle; random
// pools, windows and packings against simple checks.
//
//   core_fuzz [number of graphs] [first seed]
//
// Exits with 1 at the first violation, after printing the seed and the options.
// Meant to be built with COOP_SANITIZE.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "core/graph/bounds.h"
#include "core/graph/graph.h"
#include "core/minimum.h"
#include "core/online/pool.h"
#include "core/online/window.h"
#include "core/packing/packing.h"
#include "core/planner.h"
#include "core/schedule/validator.h"
#include "core/search/gaps.h"
#include "core/search/rollout.h"
#include "core/search/splits.h"
#include "random_graph.h"

namespace coop {
namespace {

PlanOptions RandomOptions(Random& random) {
  PlanOptions options;
  options.policy = static_cast<PolicyKind>(random.Between(0, 4));
  options.search.effort = 3000;
  options.search.packing_effort = 100'000;
  options.common.alignment = Bytes{1} << (2 * random.Between(0, 4));
  options.coop.sliding_window = random.Chance(70);
  options.coop.partition = random.Chance(70);
  options.coop.recomputable_in_place = random.Chance(70);
  if (random.Chance(20)) options.copy_on_write = random.Chance(50);
  options.dtr.neighbourhood = static_cast<Neighbourhood>(random.Between(0, 2));
  options.dtr.ignore_small = random.Chance(30);
  options.dtr.sampling = random.Chance(30);
  options.search.limits_live_bytes = random.Chance(50);
  options.common.seed = static_cast<uint64_t>(random.Between(0, 9));
  options.common.overhead_limit = 50;
  return options;
}

std::string Describe(const PlanOptions& o) {
  char text[200];
  std::snprintf(text, sizeof(text),
                "policy %d alignment %lld window %d partition %d in_place %d "
                "copy_on_write %d",
                static_cast<int>(o.policy),
                static_cast<long long>(o.common.alignment),
                o.coop.sliding_window, o.coop.partition,
                o.coop.recomputable_in_place, CopiesOnWrite(o));
  return text;
}

struct Counts {
  int64_t plans = 0;
  int64_t failures = 0;
  int64_t evictions = 0;
  int64_t recomputations = 0;
  int64_t takeovers = 0;
};

class Fuzzer {
 public:
  explicit Fuzzer(uint64_t seed) : seed_(seed), random_(seed) {}

  bool RunOnce(Counts& counts) {
    const Graph graph(ProgramBuilder(random_).Build());
    const PlanOptions options = RandomOptions(random_);
    const Bytes bound = FindLowerBound(graph, options.common.alignment).bytes;
    const Schedule loose = PlanUnconstrained(graph, options);
    if (!IsValid(graph, loose, options, {})) return false;
    if (loose.statistics.forced_evictions != 0) {
      return Complain(options, "evicted in a pool with room for everything");
    }
    const Bytes peak = loose.statistics.peak_bytes;
    const auto minimum = FindMinimumPool(graph, options);
    if (!minimum) return Complain(options, "no minimum pool");
    if (!IsValid(graph, minimum->schedule, options,
                 Promised(options, minimum->capacity))) {
      return false;
    }
    Count(minimum->schedule, counts);
    if (minimum->capacity < bound) {
      return Complain(options, "planned below the lower bound");
    }
    for (const int64_t percent : {-50, 0, 5, 10, 20, 40, 80, 100}) {
      const Bytes low = percent < 0 ? bound : minimum->capacity;
      const Bytes capacity = std::max(
          bound, low + (peak - low) * std::abs(percent) / 100);
      PlanOptions preferring = options;
      if (random_.Chance(30)) {
        preferring.search.preferred_bytes =
            capacity * random_.Between(0, 100) / 100;
      }
      const PlanResult result = Plan(graph, capacity, preferring);
      ++counts.plans;
      const auto* schedule = std::get_if<Schedule>(&result);
      if (schedule == nullptr) {
        ++counts.failures;
        continue;
      }
      if (!IsValid(graph, *schedule, options, Promised(options, capacity))) {
        return false;
      }
      Count(*schedule, counts);
    }
    if (bound > 0) {
      const PlanResult result = Plan(graph, bound - 1, options);
      if (std::holds_alternative<Schedule>(result)) {
        return Complain(options, "planned below the lower bound");
      }
    }
    return true;
  }

 private:
  bool Complain(const PlanOptions& options, const std::string& text) {
    std::fprintf(stderr, "seed %llu, %s: %s\n",
                 static_cast<unsigned long long>(seed_),
                 Describe(options).c_str(), text.c_str());
    return false;
  }

  static Limits Promised(const PlanOptions& options, Bytes capacity) {
    const bool live_bytes = options.policy == PolicyKind::kSearch &&
                            options.search.limits_live_bytes;
    if (live_bytes) return {.pool_bytes = {}, .live_bytes = capacity};
    return {.pool_bytes = capacity, .live_bytes = capacity};
  }

  bool IsValid(const Graph& graph, const Schedule& schedule,
               const PlanOptions& options, const Limits& limits) {
    const auto reports = Validate(graph, schedule, limits);
    for (const auto& report : reports) {
      Complain(options, "capacity " + std::to_string(schedule.capacity) +
                            " step " + std::to_string(report.step) + ": " +
                            Name(report.violation) + ": " + report.text);
    }
    return reports.empty();
  }

  static void Count(const Schedule& schedule, Counts& counts) {
    counts.evictions += schedule.statistics.forced_evictions;
    counts.recomputations += schedule.statistics.recomputations;
    for (const Placement& placement : schedule.placements) {
      counts.takeovers += placement.taken_over != kNone;
    }
  }

  uint64_t seed_;
  Random random_;
};

bool FuzzPool(uint64_t seed) {
  Random random(seed);
  const Bytes alignment = Bytes{1} << random.Between(0, 8);
  Pool pool(random.Between(0, 5000), alignment);
  std::vector<PieceIdx> used;
  for (int i = 0; i < 300; ++i) {
    if (!used.empty() && random.Chance(45)) {
      const size_t which = At(random.Between(0, std::ssize(used) - 1));
      pool.Release(used[which]);
      used.erase(used.begin() + static_cast<std::ptrdiff_t>(which));
    } else {
      const Bytes bytes = random.Between(1, 700);
      const bool fits = pool.Fits(bytes);
      const auto piece = pool.Allocate(
          bytes, random.Chance(50) ? Side::kLeft : Side::kRight, i);
      if (piece.has_value() != fits) return false;
      if (piece) used.push_back(*piece);
    }
    if (const auto wrong = pool.CheckInvariants()) {
      std::fprintf(stderr, "pool seed %llu: %s\n",
                   static_cast<unsigned long long>(seed), wrong->c_str());
      return false;
    }
  }
  return true;
}

// Small integer costs, so that sums are exact in any order.
bool FuzzWindow(uint64_t seed) {
  Random random(seed);
  std::vector<WindowPiece> pieces;
  for (int64_t i = random.Between(0, 30); i > 0; --i) {
    pieces.push_back(
        {random.Between(1, 8),
         random.Chance(10) ? std::numeric_limits<double>::infinity()
                           : static_cast<double>(random.Between(0, 5)),
         random.Chance(10)});
  }
  const Bytes required = random.Between(1, 25);
  std::optional<Window> best;
  for (size_t begin = 0; begin < pieces.size(); ++begin) {
    Window window{begin, begin, 0, 0};
    while (window.end < pieces.size() && !pieces[window.end].is_barrier) {
      window.bytes += pieces[window.end].bytes;
      window.cost += pieces[window.end].cost;
      ++window.end;
      if (window.bytes < required) continue;
      if (!best || window.cost < best->cost ||
          (window.cost == best->cost && window.bytes < best->bytes)) {
        best = window;
      }
    }
  }
  const auto found = WindowSearch().Find(pieces, required);
  const bool same = found.has_value() == best.has_value() &&
                    (!found || (found->begin == best->begin &&
                                found->end == best->end &&
                                found->cost == best->cost));
  if (!same) {
    std::fprintf(stderr, "window seed %llu differs from brute force\n",
                 static_cast<unsigned long long>(seed));
  }
  return same;
}

// Checked pair by pair. Fixed blocks are some of an earlier packing's.
bool FuzzPacking(uint64_t seed) {
  Random random(seed);
  std::vector<PackingBlock> blocks;
  const int64_t num_steps = random.Between(1, 40);
  for (int64_t i = random.Between(0, 60); i > 0; --i) {
    const int64_t first = random.Between(-num_steps, num_steps);
    blocks.push_back({first, first + random.Between(0, num_steps),
                      random.Chance(5) ? 0 : random.Between(1, 400)});
  }
  PackingOptions options;
  options.alignment = Bytes{1} << random.Between(0, 8);
  options.effort = random.Chance(30) ? 0 : random.Between(1, 1'000'000);
  options.seed = seed;
  for (const bool fix : {false, true}) {
    const Packing packing = Pack(blocks, options);
    Bytes peak = 0;
    Bytes bound = 0;
    bool right = packing.offsets.size() == blocks.size();
    for (size_t i = 0; right && i < blocks.size(); ++i) {
      const PackingBlock& a = blocks[i];
      const Offset offset = packing.offsets[i];
      const Bytes bytes = RoundUp(a.bytes, options.alignment);
      right = offset >= 0 && offset % options.alignment == 0 &&
              (a.fixed_offset == kNone || offset == a.fixed_offset);
      if (bytes == 0) continue;
      peak = std::max(peak, offset + bytes);
      Bytes live = 0;
      for (size_t j = 0; j < blocks.size(); ++j) {
        const PackingBlock& b = blocks[j];
        const Bytes other = RoundUp(b.bytes, options.alignment);
        if (b.first <= a.first && a.first <= b.last) live += other;
        if (j == i || other == 0 || a.last < b.first || b.last < a.first) {
          continue;
        }
        right = right && (offset + bytes <= packing.offsets[j] ||
                          packing.offsets[j] + other <= offset);
      }
      bound = std::max(bound, live);
      if (a.fixed_offset != kNone) bound = std::max(bound, offset + bytes);
    }
    if (!right || peak != packing.peak_bytes ||
        bound != packing.lower_bound_bytes) {
      std::fprintf(stderr, "packing seed %llu is wrong\n",
                   static_cast<unsigned long long>(seed));
      return false;
    }
    if (fix) break;
    for (size_t i = 0; i < blocks.size(); ++i) {
      if (blocks[i].bytes > 0 && random.Chance(30)) {
        blocks[i].fixed_offset = packing.offsets[i];
      }
    }
  }
  return true;
}

// Parting gaps changes nothing until the parts are decided differently.
bool FuzzSplits(uint64_t seed) {
  Random random(seed);
  const Graph graph(ProgramBuilder(random).Build());
  GapTable gaps(graph);
  Decisions decisions = gaps.KeepAll();
  for (GapIdx gap = 0; gap < gaps.size(); ++gap) {
    if (gaps.may_drop(gap) && random.Chance(50)) {
      decisions[At(gap)] = static_cast<uint8_t>(random.Between(0, 3));
    }
  }
  constexpr Bytes kAlignment = 64;
  const auto roll_out = [&](const GapTable& table, const Decisions& decided) {
    Rollout rollout(graph, table, kAlignment);
    rollout.Run(decided);
    std::vector<OpIdx> ran;
    for (const Execution& e : rollout.executions()) ran.push_back(e.op);
    return std::pair(ran, rollout.peak_bytes());
  };
  const auto expected = roll_out(gaps, decisions);
  for (int round = 0; round < 3; ++round) {
    std::vector<Split> splits = FindSplits(graph, gaps, decisions);
    if (splits.empty()) {
      splits.assign(gaps.splits().begin(), gaps.splits().end());
    }
    for (GapIdx gap = 0; gap < gaps.size(); ++gap) {
      const Position end = std::min(gaps.end(gap), graph.num_ops() - 1);
      if (end - gaps.begin(gap) < 2 || !random.Chance(30)) continue;
      splits.push_back(
          {gaps.tensor(gap), random.Between(gaps.begin(gap) + 1, end - 1)});
    }
    std::ranges::sort(splits);
    splits.erase(std::ranges::unique(splits).begin(), splits.end());
    const GapTable finer(graph, splits);
    decisions = finer.Refine(gaps, decisions);
    gaps = finer;
    if (roll_out(gaps, decisions) != expected) {
      std::fprintf(stderr, "splits seed %llu: another plan in round %d\n",
                   static_cast<unsigned long long>(seed), round);
      return false;
    }
  }
  return true;
}

}  // namespace
}  // namespace coop

int main(int argc, char** argv) {
  const uint64_t count = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 2000;
  const uint64_t first = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  coop::Counts counts;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    if (!coop::FuzzPool(seed) || !coop::FuzzWindow(seed) ||
        !coop::FuzzPacking(seed) || !coop::FuzzSplits(seed) ||
        !coop::Fuzzer(seed).RunOnce(counts)) {
      return EXIT_FAILURE;
    }
  }
  std::printf(
      "%llu graphs: %lld plans, %lld failed for memory, %lld evictions, %lld "
      "recomputations, %lld take-overs, no violation\n",
      static_cast<unsigned long long>(count),
      static_cast<long long>(counts.plans),
      static_cast<long long>(counts.failures),
      static_cast<long long>(counts.evictions),
      static_cast<long long>(counts.recomputations),
      static_cast<long long>(counts.takeovers));
  return EXIT_SUCCESS;
}
