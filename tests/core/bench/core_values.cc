// What the planner finds for random steps: to compare builds of the core that
// differ in a constant (examples/tuned/core.py).
//
//   core_values
//
// A step has a forward half with skip connections and a backward half that
// mirrors it. Lines on standard output: a kind, a figure that is better if it is
// smaller, and seconds of processor time.
//
//   plan: seconds recomputed at 75 % and 55 % of the bytes without recomputation
//   pool: bytes of the smallest pool
//   packed: the same with offsets inside of the pool
//   packing: bytes of the highest end of the pieces of a rectangle

#include <cstdint>
#include <cstdio>
#include <ctime>
#include <random>
#include <variant>
#include <vector>

#include "core/graph/graph.h"
#include "core/minimum.h"
#include "core/options.h"
#include "core/packing/packing.h"
#include "core/planner.h"

namespace {

using coop::Bytes;
using coop::TensorIdx;

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  // In [0, below).
  int64_t Below(int64_t below) {
    return static_cast<int64_t>(engine_() % static_cast<uint64_t>(below));
  }

 private:
  std::mt19937_64 engine_;
};

coop::Graph RandomStep(int64_t num_ops, uint64_t seed) {
  Random random(seed);
  coop::GraphArrays a;
  const auto add_tensor = [&](Bytes bytes, bool external) {
    a.tensor_bytes.push_back(bytes);
    a.tensor_external.push_back(external);
    a.tensor_pinned.push_back(0);
    a.tensor_output.push_back(0);
    return std::ssize(a.tensor_bytes) - 1;
  };
  const auto add_op = [&](std::initializer_list<TensorIdx> inputs) {
    a.op_inputs.insert(a.op_inputs.end(), inputs);
    a.op_inputs_ptr.push_back(std::ssize(a.op_inputs));
    const TensorIdx made = add_tensor((1 + random.Below(8)) << 20, false);
    a.op_outputs.push_back(made);
    a.op_outputs_ptr.push_back(std::ssize(a.op_outputs));
    a.op_seconds.push_back(1e-3 * static_cast<double>(1 + random.Below(20)));
    a.op_workspace_bytes.push_back(0);
    a.op_recomputable.push_back(1);
    return made;
  };
  a.op_inputs_ptr = {0};
  a.op_outputs_ptr = {0};
  TensorIdx last = add_tensor(0, true);
  std::vector<TensorIdx> forward;
  for (int64_t k = 0; k < num_ops / 2; ++k) {
    if (k > 1 && random.Below(10) < 3) {
      const TensorIdx skip = forward[static_cast<size_t>(random.Below(k))];
      last = add_op({last, skip});
    } else {
      last = add_op({last});
    }
    forward.push_back(last);
  }
  for (; !forward.empty(); forward.pop_back()) {
    last = add_op({last, forward.back()});
  }
  a.tensor_output[static_cast<size_t>(last)] = 1;
  return coop::Graph(std::move(a));
}

class Line {
 public:
  ~Line() {
    const double seconds =
        static_cast<double>(std::clock() - start_) / CLOCKS_PER_SEC;
    std::printf("%s %.17g %.3f\n", kind, figure, seconds);
  }
  const char* kind = "";
  double figure = -1;  // None was found.

 private:
  std::clock_t start_ = std::clock();
};

void PlanStep(int64_t num_ops, uint64_t seed) {
  const coop::Graph graph = RandomStep(num_ops, seed);
  coop::PlanOptions options;
  options.policy = coop::PolicyKind::kSearch;
  options.common.overhead_limit = 10;
  options.search.packing_effort = 2'000'000;
  for (const bool limits_live_bytes : {true, false}) {
    options.search.limits_live_bytes = limits_live_bytes;
    const Bytes most =
        coop::PlanUnconstrained(graph, options).statistics.max_live_bytes;
    for (const Bytes percent : {75, 55}) {
      Line line;
      line.kind = limits_live_bytes ? "plan" : "packed";
      const auto plan = coop::Plan(graph, most * percent / 100, options);
      if (const auto* found = std::get_if<coop::Schedule>(&plan)) {
        line.figure = found->statistics.recompute_seconds;
      }
    }
    if (!limits_live_bytes) continue;
    Line line;
    line.kind = "pool";
    if (const auto found = coop::FindMinimumPool(graph, options)) {
      line.figure = static_cast<double>(found->capacity);
    }
  }
}

// The pieces of a rectangle of time and bytes, which is cut again and again, in
// time or in bytes, a piece chosen by its area: to pack them as low as that is
// hard (tests/oracles/tilings.py).
std::vector<coop::PackingBlock> CutRectangle(int64_t num_blocks, Random& random) {
  const auto steps = [](const coop::PackingBlock& block) {
    return block.last - block.first + 1;
  };
  std::vector<coop::PackingBlock> pieces = {
      {.first = 0, .last = 4 * num_blocks - 1, .bytes = 1 << 20}};
  while (std::ssize(pieces) < num_blocks) {
    int64_t at = random.Below((4 * num_blocks) << 20);
    size_t chosen = 0;
    while ((at -= steps(pieces[chosen]) * pieces[chosen].bytes) >= 0) ++chosen;
    coop::PackingBlock& piece = pieces[chosen];
    coop::PackingBlock rest = piece;
    if (random.Below(2) == 0) {
      if (steps(piece) < 2) continue;
      rest.first += 1 + random.Below(steps(piece) - 1);
      piece.last = rest.first - 1;
    } else {
      if (piece.bytes < 2) continue;
      piece.bytes = 1 + random.Below(piece.bytes - 1);
      rest.bytes -= piece.bytes;
    }
    pieces.push_back(rest);
  }
  return pieces;
}

void PackBlocks(int64_t num_blocks, uint64_t seed) {
  Random random(seed);
  const std::vector<coop::PackingBlock> blocks = CutRectangle(num_blocks, random);
  Line line;
  line.kind = "packing";
  const coop::Packing packing =
      coop::Pack(blocks, {.alignment = 1, .effort = 20'000'000});
  line.figure = static_cast<double>(packing.peak_bytes);
}

}  // namespace

int main() {
  for (const int64_t num_ops : {40, 80, 160, 320}) {
    for (const uint64_t seed : {1001, 1002}) PlanStep(num_ops, seed);
  }
  for (const int64_t num_blocks : {100, 200, 400, 800}) {
    for (const uint64_t seed : {1001, 1002, 1003, 1004}) PackBlocks(num_blocks, seed);
  }
  return 0;
}
