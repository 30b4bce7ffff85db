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
#include <random>
#include <string>
#include <vector>

#include "core/bounds.h"
#include "core/graph.h"
#include "core/minimum.h"
#include "core/packing.h"
#include "core/pool.h"
#include "core/planner.h"
#include "core/validator.h"
#include "core/window.h"

namespace coop {
namespace {

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  // In [low, high].
  int64_t Between(int64_t low, int64_t high) {
    const auto range = static_cast<uint64_t>(high - low + 1);
    return low + static_cast<int64_t>(engine_() % range);
  }
  bool Chance(int64_t percent) { return Between(1, 100) <= percent; }

 private:
  std::mt19937_64 engine_;
};

// Builds the arrays of a random but legal program.
class ProgramBuilder {
 public:
  explicit ProgramBuilder(Random& random) : random_(random) {}

  GraphArrays Build() {
    a_.op_inputs_ptr = {0};
    a_.op_outputs_ptr = {0};
    const int64_t num_ops = random_.Between(1, 80);
    recomputable_percent_ = random_.Chance(50) ? 100 : 85;
    for (int64_t i = random_.Between(1, 5); i > 0; --i) AddGraphInput();
    for (OpIdx op = 0; op < num_ops; ++op) AddOp(op);
    MarkOutputs();
    if (random_.Chance(20)) AddReleases();
    return a_;
  }

 private:
  TensorIdx AddTensor(Bytes bytes, bool external, bool pinned) {
    a_.tensor_bytes.push_back(bytes);
    a_.tensor_external.push_back(external);
    a_.tensor_pinned.push_back(pinned);
    a_.tensor_output.push_back(0);
    readable_.push_back(1);
    last_read_.push_back(std::ssize(a_.op_seconds) - 1);
    return std::ssize(a_.tensor_bytes) - 1;
  }

  Bytes RandomBytes() {
    static constexpr Bytes kSizes[] = {0, 1, 64, 64, 100, 256, 256, 1000};
    return kSizes[random_.Between(0, 7)];
  }

  void AddGraphInput() {
    const auto kind = random_.Between(0, 2);
    AddTensor(RandomBytes(), kind == 0, kind == 1);
  }

  void AddOp(OpIdx op) {
    std::vector<TensorIdx> inputs;
    for (int64_t i = random_.Between(0, 3); i > 0; --i) {
      // Mostly recent tensors, sometimes old ones, now and then one twice.
      const int64_t count = std::ssize(a_.tensor_bytes);
      const int64_t low =
          random_.Chance(60) ? std::max<int64_t>(0, count - 6) : 0;
      const TensorIdx t = random_.Between(low, count - 1);
      if (!readable_[At(t)]) continue;
      inputs.push_back(t);
      last_read_[At(t)] = op;
    }
    a_.op_inputs.insert(a_.op_inputs.end(), inputs.begin(), inputs.end());
    a_.op_inputs_ptr.push_back(std::ssize(a_.op_inputs));
    a_.op_seconds.push_back(random_.Chance(10)
                                ? 0.0
                                : static_cast<double>(random_.Between(1, 50)));
    a_.op_workspace_bytes.push_back(random_.Chance(20) ? RandomBytes() : 0);
    a_.op_recomputable.push_back(random_.Chance(recomputable_percent_));
    for (int64_t i = random_.Between(0, 3); i > 0; --i) AddOutput(op, inputs);
    a_.op_outputs_ptr.push_back(std::ssize(a_.op_outputs));
  }

  void AddOutput(OpIdx op, const std::vector<TensorIdx>& inputs) {
    if (!inputs.empty()) {
      const TensorIdx input =
          inputs[At(random_.Between(0, std::ssize(inputs) - 1))];
      const bool external = a_.tensor_external[At(input)];
      const bool pinned = a_.tensor_pinned[At(input)];
      const Bytes bytes = a_.tensor_bytes[At(input)];
      if ((external || pinned) && readable_[At(input)] && random_.Chance(30)) {
        const TensorIdx t = AddTensor(bytes, external, pinned);
        a_.op_outputs.push_back(t);
        a_.overwrites.push_back({op, input, t});
        readable_[At(input)] = 0;
        return;
      }
      if (!external && random_.Chance(40)) {
        const TensorIdx t = AddTensor(bytes, false, random_.Chance(5));
        a_.op_outputs.push_back(t);
        a_.in_place.push_back({op, input, t});
        return;
      }
    }
    const bool external = random_.Chance(5);
    a_.op_outputs.push_back(
        AddTensor(RandomBytes(), external, !external && random_.Chance(5)));
  }

  void MarkOutputs() {
    for (size_t t = 0; t < a_.tensor_output.size(); ++t) {
      if (readable_[t] && random_.Chance(8)) a_.tensor_output[t] = 1;
    }
  }

  // Some handles are dropped late, some never.
  void AddReleases() {
    a_.releases.emplace();
    const OpIdx num_ops = std::ssize(a_.op_seconds);
    for (TensorIdx t = 0; t < std::ssize(a_.tensor_bytes); ++t) {
      if (a_.tensor_output[At(t)] || random_.Chance(10)) continue;
      OpIdx op = std::max<OpIdx>(last_read_[At(t)], 0);
      for (size_t i = 0; i + 1 < a_.op_outputs_ptr.size(); ++i) {
        for (auto j = a_.op_outputs_ptr[i]; j < a_.op_outputs_ptr[i + 1]; ++j) {
          if (a_.op_outputs[At(j)] == t) {
            op = std::max(op, static_cast<OpIdx>(i));
          }
        }
      }
      op = std::min(num_ops - 1, op + random_.Between(0, 3));
      a_.releases->push_back({op, t});
    }
  }

  Random& random_;
  int64_t recomputable_percent_ = 100;
  GraphArrays a_;
  std::vector<uint8_t> readable_;  // Not overwritten yet.
  std::vector<OpIdx> last_read_;
};

PlanOptions RandomOptions(Random& random) {
  PlanOptions options;
  options.policy = static_cast<PolicyKind>(random.Between(0, 4));
  options.search_effort = 3000;
  options.packing_effort = 100'000;
  options.alignment = Bytes{1} << (2 * random.Between(0, 4));
  options.sliding_window = random.Chance(70);
  options.partition = random.Chance(70);
  options.recomputable_in_place = random.Chance(70);
  if (random.Chance(20)) options.copy_on_write = random.Chance(50);
  options.dtr_neighbourhood = static_cast<Neighbourhood>(random.Between(0, 2));
  options.ignore_small = random.Chance(30);
  options.sampling = random.Chance(30);
  options.seed = static_cast<uint64_t>(random.Between(0, 9));
  options.overhead_limit = 50;
  return options;
}

std::string Describe(const PlanOptions& o) {
  char text[200];
  std::snprintf(text, sizeof(text),
                "policy %d alignment %lld window %d partition %d in_place %d "
                "copy_on_write %d",
                static_cast<int>(o.policy),
                static_cast<long long>(o.alignment), o.sliding_window,
                o.partition, o.recomputable_in_place, CopiesOnWrite(o));
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
    const Bytes bound = FindLowerBound(graph, options.alignment).bytes;
    const Schedule loose = PlanUnconstrained(graph, options);
    if (!IsValid(graph, loose, options)) return false;
    if (loose.statistics.forced_evictions != 0) {
      return Complain(options, "evicted in a pool with room for everything");
    }
    const Bytes peak = loose.statistics.peak_bytes;
    const auto minimum = FindMinimumPool(graph, options);
    if (!minimum) return Complain(options, "no minimum pool");
    if (!IsValid(graph, minimum->schedule, options)) return false;
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
        preferring.preferred_bytes = capacity * random_.Between(0, 100) / 100;
      }
      const PlanResult result = Plan(graph, capacity, preferring);
      ++counts.plans;
      const auto* schedule = std::get_if<Schedule>(&result);
      if (schedule == nullptr) {
        ++counts.failures;
        continue;
      }
      if (!IsValid(graph, *schedule, options)) return false;
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

  bool IsValid(const Graph& graph, const Schedule& schedule,
               const PlanOptions& options) {
    const auto reports = Validate(graph, schedule);
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

}  // namespace
}  // namespace coop

int main(int argc, char** argv) {
  const uint64_t count = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 2000;
  const uint64_t first = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  coop::Counts counts;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    if (!coop::FuzzPool(seed) || !coop::FuzzWindow(seed) ||
        !coop::FuzzPacking(seed) ||
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
