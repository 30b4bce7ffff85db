#include "core/search/static_schedule.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace coop {
namespace {

using BlockIdx = int64_t;

class Writer {
 public:
  Writer(const Graph& graph, const GapTable& gaps, const Rollout& rollout,
         Bytes alignment)
      : graph_(graph),
        gaps_(gaps),
        rollout_(rollout),
        alignment_(alignment),
        end_(std::ssize(rollout.executions())) {}

  std::optional<Schedule> Write(const BlockPacker& pack) && {
    MakeBlocks();
    const std::optional<Packing> packing = pack(blocks_, names_);
    if (!packing) return std::nullopt;
    offsets_ = packing->offsets;
    schedule_.alignment = alignment_;
    schedule_.capacity = packing->peak_bytes;
    PlaceGraphInputs();
    for (ExecIdx e = 0; e < end_; ++e) WriteExecution(e);
    Summarise(packing->peak_bytes);
    return std::move(schedule_);
  }

 private:
  // Packing step 0 is the start, e + 1 is execution e.
  BlockIdx AddBlock(TensorIdx name, ExecIdx first, ExecIdx last, Bytes bytes) {
    blocks_.push_back({.first = first + 1, .last = last + 1, .bytes = bytes});
    names_.push_back({name, rollout_.PositionOf(first)});
    return std::ssize(blocks_) - 1;
  }

  void Extend(BlockIdx block, ExecIdx last) {
    int64_t& present = blocks_[At(block)].last;
    present = std::max(present, last + 1);
  }

  void MakeBlocks() {
    const auto versions = rollout_.versions();
    for (const Version& version : versions) {
      const ExecIdx last = std::max(version.made, version.last_read);
      if (version.takes_over == kNone) {
        version_block_.push_back(
            AddBlock(version.tensor, version.made, last,
                     rollout_.Size(version.tensor)));
      } else {
        const BlockIdx block = version_block_[At(version.takes_over)];
        Extend(block, last);
        version_block_.push_back(block);
      }
    }
    taken_over_.assign(versions.size(), 0);
    last_version_.assign(At(graph_.num_tensors()), kNone);
    for (VersionIdx v = 0; v < std::ssize(versions); ++v) {
      const Version& version = versions[At(v)];
      last_version_[At(version.tensor)] = v;
      if (version.takes_over != kNone) taken_over_[At(version.takes_over)] = 1;
      drops_.emplace_back(std::max(version.made, version.last_read), v);
    }
    std::ranges::sort(drops_);
    for (const auto& [e, t] : rollout_.discarded()) {
      discarded_block_.push_back(AddBlock(t, e, e, rollout_.Size(t)));
    }
    MakePinnedBlocks();
    for (ExecIdx e = 0; e < end_; ++e) {
      const OpIdx op = rollout_.executions()[At(e)].op;
      const Bytes bytes = graph_.workspace_bytes(op);
      workspace_block_.push_back(bytes > 0 ? AddBlock(-2 - op, e, e, bytes)
                                           : kNone);
    }
  }

  // A pinned tensor stays to the end, and so does its block if another takes it
  // over.
  void MakePinnedBlocks() {
    pinned_block_.assign(At(graph_.num_tensors()), kNone);
    const auto add = [&](TensorIdx t, ExecIdx made) {
      if (!graph_.is_pinned(t) || graph_.bytes(t) == 0) return;
      if (pinned_block_[At(t)] != kNone) return;
      pinned_block_[At(t)] = AddBlock(t, made, end_, graph_.bytes(t));
    };
    for (TensorIdx t = 0; t < graph_.num_tensors(); ++t) {
      if (graph_.producer(t) == kNone) add(t, kNone);
    }
    for (ExecIdx e = 0; e < end_; ++e) {
      const Execution& execution = rollout_.executions()[At(e)];
      if (execution.is_recompute) continue;
      for (const Overwrite& o : graph_.overwrites(execution.op)) {
        pinned_block_[At(o.new_tensor)] = pinned_block_[At(o.old_tensor)];
      }
      for (const TensorIdx t : graph_.outputs(execution.op)) add(t, e);
    }
  }

  Offset OffsetOf(BlockIdx block) const {
    return block == kNone ? 0 : offsets_[At(block)];
  }

  void PlaceGraphInputs() {
    VersionIdx version = 0;  // The first ones are the graph inputs', in order.
    for (TensorIdx t = 0; t < graph_.num_tensors(); ++t) {
      if (graph_.producer(t) != kNone || graph_.is_external(t)) continue;
      BlockIdx block = pinned_block_[At(t)];
      if (gaps_.has_gaps(t)) block = version_block_[At(version++)];
      schedule_.initial_placements.push_back({t, OffsetOf(block)});
    }
    next_made_ = version;
    DropAfter(kNone);
  }

  void WriteExecution(ExecIdx e) {
    const Execution& execution = rollout_.executions()[At(e)];
    const auto versions = rollout_.versions();
    placements_.clear();
    while (next_made_ < std::ssize(versions) &&
           versions[At(next_made_)].made == e) {
      const Version& version = versions[At(next_made_)];
      TensorIdx taken_over = kNone;
      if (version.takes_over != kNone) {
        taken_over = versions[At(version.takes_over)].tensor;
        DropVersion(version.takes_over);
      }
      placements_.push_back({0, version.tensor,
                             OffsetOf(version_block_[At(next_made_)]),
                             taken_over});
      ++next_made_;
    }
    if (!execution.is_recompute) PlaceWhatStays(execution);
    const size_t first_discarded = next_discarded_;
    const auto discarded = rollout_.discarded();
    while (next_discarded_ < discarded.size() &&
           discarded[next_discarded_].first == e) {
      placements_.push_back({0, discarded[next_discarded_].second,
                             OffsetOf(discarded_block_[next_discarded_]),
                             kNone});
      ++next_discarded_;
    }
    const int64_t step = std::ssize(schedule_.steps);
    schedule_.steps.push_back({execution.is_recompute ? StepKind::kRecompute
                                                      : StepKind::kCompute,
                               execution.op});
    for (Placement& placement : placements_) placement.step = step;
    schedule_.placements.insert(schedule_.placements.end(),
                                placements_.begin(), placements_.end());
    if (workspace_block_[At(e)] != kNone) {
      schedule_.workspaces.push_back({step, OffsetOf(workspace_block_[At(e)])});
    }
    DropAfter(e);
    for (size_t i = first_discarded; i < next_discarded_; ++i) {
      Free(discarded[i].second);
    }
  }

  // Pinned tensors and those of no bytes, which are made once.
  void PlaceWhatStays(const Execution& execution) {
    for (const TensorIdx t : graph_.outputs(execution.op)) {
      if (graph_.is_external(t) || gaps_.has_gaps(t)) continue;
      TensorIdx taken_over = kNone;
      for (const Overwrite& o : graph_.overwrites(execution.op)) {
        if (o.new_tensor == t && graph_.bytes(t) > 0) taken_over = o.old_tensor;
      }
      if (taken_over != kNone) Free(taken_over);
      placements_.push_back(
          {0, t, OffsetOf(pinned_block_[At(t)]), taken_over});
    }
  }

  void DropAfter(ExecIdx e) {
    while (next_drop_ < drops_.size() && drops_[next_drop_].first == e) {
      const VersionIdx version = drops_[next_drop_++].second;
      if (!taken_over_[At(version)]) DropVersion(version);
    }
  }

  void DropVersion(VersionIdx version) {
    const TensorIdx t = rollout_.versions()[At(version)].tensor;
    if (last_version_[At(t)] == version) {
      Free(t);
      return;
    }
    ++schedule_.statistics.forced_evictions;
    schedule_.steps.push_back({StepKind::kEvict, t});
  }

  void Free(TensorIdx t) {
    if (graph_.is_evictable(t)) ++schedule_.statistics.eager_evictions;
    schedule_.steps.push_back({StepKind::kFree, t});
  }

  void Summarise(Bytes peak_bytes) {
    Statistics& statistics = schedule_.statistics;
    statistics.peak_bytes = peak_bytes;
    statistics.max_live_bytes = rollout_.peak_bytes();
    for (const Execution& execution : rollout_.executions()) {
      const Seconds seconds = graph_.seconds(execution.op);
      if (execution.is_recompute) {
        statistics.recompute_seconds += seconds;
        ++statistics.recomputations;
      } else {
        statistics.compute_seconds += seconds;
      }
    }
  }

  const Graph& graph_;
  const GapTable& gaps_;
  const Rollout& rollout_;
  const Bytes alignment_;
  const ExecIdx end_;
  Schedule schedule_;
  std::vector<PackingBlock> blocks_;
  std::vector<BlockName> names_;
  std::vector<Offset> offsets_;
  std::vector<BlockIdx> version_block_;
  std::vector<BlockIdx> pinned_block_;  // By tensor.
  std::vector<BlockIdx> discarded_block_;
  std::vector<BlockIdx> workspace_block_;  // By execution.
  std::vector<uint8_t> taken_over_;        // By version.
  std::vector<VersionIdx> last_version_;   // By tensor.
  std::vector<std::pair<ExecIdx, VersionIdx>> drops_;
  std::vector<Placement> placements_;
  VersionIdx next_made_ = 0;
  size_t next_drop_ = 0;
  size_t next_discarded_ = 0;
};

}  // namespace

Schedule MakeStaticSchedule(const Graph& graph, const GapTable& gaps,
                            const Rollout& rollout,
                            const PackingOptions& options) {
  const auto pack = [&](std::span<const PackingBlock> blocks,
                        std::span<const BlockName>) {
    return std::optional(Pack(blocks, options));
  };
  return *MakeStaticSchedule(graph, gaps, rollout, options.alignment, pack);
}

std::optional<Schedule> MakeStaticSchedule(const Graph& graph,
                                           const GapTable& gaps,
                                           const Rollout& rollout,
                                           Bytes alignment,
                                           const BlockPacker& pack) {
  return Writer(graph, gaps, rollout, alignment).Write(pack);
}

}  // namespace coop
