#include "core/schedule/xla_heap.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <sstream>
#include <stdexcept>
#include <tuple>
#include <vector>

#include "core/packing/greedy.h"
#include "core/packing/problem.h"

namespace coop {
namespace {

template <typename... Parts>
[[noreturn]] void Fail(const Parts&... parts) {
  std::ostringstream text;
  text << "xla_heap_bytes: `schedule` must be one of `graph`, but ";
  (text << ... << parts);
  throw std::invalid_argument(text.str());
}

// The lifetimes of a schedule's tensors, counted in operations that run.
class BlockReader {
 public:
  BlockReader(const Graph& graph, const Schedule& schedule)
      : graph_(graph),
        block_of_(At(graph.num_tensors()), kNone),
        is_there_(At(graph.num_tensors()), 0) {
    for (const InitialPlacement& placed : schedule.initial_placements) {
      Make(kNone, placed.tensor);
      Begin(placed.tensor);
    }
    size_t next = 0;
    for (int64_t step = 0; step < std::ssize(schedule.steps); ++step) {
      const auto [kind, index] = schedule.steps[At(step)];
      if (kind == StepKind::kEvict || kind == StepKind::kFree) {
        End(index);
        continue;
      }
      CheckRun(step, kind, index);
      ++time_;
      for (; next < schedule.placements.size() &&
             schedule.placements[next].step <= step;
           ++next) {
        if (schedule.placements[next].step < step) FailAt(schedule, next);
        Place(index, schedule.placements[next]);
      }
      blocks_.push_back({time_, time_, graph_.workspace_bytes(index)});
    }
    if (next < schedule.placements.size()) FailAt(schedule, next);
    if (num_computed_ != graph_.num_ops()) {
      Fail("it computes ", num_computed_, " of ", graph_.num_ops(),
           " operations");
    }
    for (PackingBlock& block : blocks_) {
      block.last = std::min(block.last, time_);
    }
  }

  [[nodiscard]] std::span<const PackingBlock> blocks() const { return blocks_; }

 private:
  static constexpr int64_t kOpen = std::numeric_limits<int64_t>::max();

  [[noreturn]] static void FailAt(const Schedule& schedule, size_t placement) {
    Fail("a placement is of step ", schedule.placements[placement].step,
         ", which runs no operation or is listed out of order");
  }

  void CheckRun(int64_t step, StepKind kind, OpIdx op) {
    if (kind != StepKind::kCompute && kind != StepKind::kRecompute) {
      Fail("step ", step, " is of the unknown kind ",
           static_cast<int64_t>(kind));
    }
    if (op < 0 || op >= graph_.num_ops()) {
      Fail("step ", step, " runs operation ", op, " of ", graph_.num_ops());
    }
    const bool is_first = kind == StepKind::kCompute;
    if (is_first ? op != num_computed_ : op >= num_computed_) {
      Fail("step ", step, is_first ? " computes" : " recomputes",
           " operation ", op, " when ", num_computed_, " are computed");
    }
    num_computed_ += is_first ? 1 : 0;
  }

  void CheckTensor(TensorIdx tensor) const {
    if (tensor >= 0 && tensor < graph_.num_tensors()) return;
    Fail("it names tensor ", tensor, " of ", graph_.num_tensors());
  }

  // `op` is kNone for what is there from the start.
  void Make(OpIdx op, TensorIdx tensor) {
    CheckTensor(tensor);
    if (graph_.producer(tensor) != op) {
      Fail("it places tensor ", tensor, ", which operation ",
           graph_.producer(tensor), " makes, with operation ", op);
    }
    if (is_there_[At(tensor)]) {
      Fail("it places tensor ", tensor, ", which is there already");
    }
    is_there_[At(tensor)] = 1;
  }

  void Place(OpIdx op, const Placement& placed) {
    Make(op, placed.tensor);
    if (placed.taken_over == kNone) {
      Begin(placed.tensor);
      return;
    }
    CheckTensor(placed.taken_over);
    // Not over yet after all.
    const int64_t block = block_of_[At(placed.taken_over)];
    block_of_[At(placed.tensor)] = block;
    if (block != kNone) blocks_[At(block)].last = kOpen;
  }

  void End(TensorIdx tensor) {
    CheckTensor(tensor);
    if (!is_there_[At(tensor)]) {
      Fail("it drops tensor ", tensor, ", which is not there");
    }
    is_there_[At(tensor)] = 0;
    const int64_t block = block_of_[At(tensor)];
    if (block != kNone) blocks_[At(block)].last = time_;
  }

  void Begin(TensorIdx tensor) {
    const Bytes bytes = graph_.is_external(tensor) ? 0 : graph_.bytes(tensor);
    block_of_[At(tensor)] = bytes > 0 ? std::ssize(blocks_) : kNone;
    if (bytes > 0) blocks_.push_back({time_, kOpen, bytes});
  }

  const Graph& graph_;
  int64_t time_ = 0;
  OpIdx num_computed_ = 0;
  std::vector<int64_t> block_of_;
  std::vector<uint8_t> is_there_;
  std::vector<PackingBlock> blocks_;
};

// Each block in the smallest gap that holds it, by ascending `key`: of a block
// and its padded size.
template <typename Key>
PackingSolution BestFit(const PackingProblem& problem,
                        std::span<const PackingBlock> blocks, const Key& key) {
  std::vector<int32_t> order(problem.blocks.size());
  std::iota(order.begin(), order.end(), 0);
  const auto key_of = [&](int32_t i) {
    const int64_t source = problem.blocks[At(i)].source;
    return key(blocks[At(source)], problem.blocks[At(i)].bytes);
  };
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return key_of(a) < key_of(b);
  });
  int64_t work = 0;
  return *GreedyPacker(problem).Place(
      order, Fit::kBest, std::numeric_limits<Bytes>::max(), work);
}

}  // namespace

Bytes XlaHeapBytes(std::span<const PackingBlock> blocks, Bytes alignment) {
  CheckBlocks("xla_heap_bytes", blocks, alignment);
  const std::vector<PackingProblem> problems = SplitPacking(blocks, alignment);
  const auto peak = [&](const auto& key) {
    Bytes highest = 0;
    for (const PackingProblem& problem : problems) {
      highest = std::max(highest, BestFit(problem, blocks, key).peak_bytes);
    }
    return highest;
  };
  const Bytes largest_first =
      peak([](const PackingBlock& block, Bytes bytes) {
        return std::tuple(-bytes, block.first - block.last);
      });
  const Bytes longest_first =
      peak([](const PackingBlock& block, Bytes bytes) {
        return std::tuple(block.first - block.last, -bytes);
      });
  return std::min(largest_first, longest_first);
}

Bytes XlaHeapBytes(const Graph& graph, const Schedule& schedule) {
  return XlaHeapBytes(BlockReader(graph, schedule).blocks(),
                      schedule.alignment);
}

}  // namespace coop
