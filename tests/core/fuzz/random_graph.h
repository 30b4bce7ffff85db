// Random but legal programs for the fuzzers.
#ifndef COOP_TESTS_CORE_FUZZ_RANDOM_GRAPH_H_
#define COOP_TESTS_CORE_FUZZ_RANDOM_GRAPH_H_

#include <algorithm>
#include <random>
#include <vector>

#include "core/graph/graph.h"

namespace coop {

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

}  // namespace coop

#endif  // COOP_TESTS_CORE_FUZZ_RANDOM_GRAPH_H_
