#include "core/search/rollout.h"

#include <algorithm>
#include <stdexcept>

namespace coop {

Rollout::Rollout(const Graph& graph, const GapTable& gaps, Bytes alignment)
    : graph_(graph),
      gaps_(gaps),
      size_(At(graph.num_tensors()), 0),
      workspace_(At(graph.num_ops()), 0),
      pinned_(At(graph.num_ops() + 2), 0),
      visited_(At(graph.num_ops()), 0) {
  for (TensorIdx t = 0; t < graph.num_tensors(); ++t) {
    if (graph.is_external(t)) continue;
    size_[At(t)] = RoundUp(graph.bytes(t), alignment);
  }
  for (OpIdx op = 0; op < graph.num_ops(); ++op) {
    workspace_[At(op)] = RoundUp(graph.workspace_bytes(op), alignment);
  }
  for (TensorIdx t = 0; t < graph.num_tensors(); ++t) {
    if (graph.producer(t) == kNone) start_bytes_ += Size(t);
  }
  // A pinned tensor stays to the end, or until another takes over its block.
  std::vector<uint8_t> takes_over(At(graph.num_tensors()), 0);
  for (OpIdx op = 0; op < graph.num_ops(); ++op) {
    for (const Overwrite& overwrite : graph.overwrites(op)) {
      takes_over[At(overwrite.new_tensor)] =
          graph.is_pinned(overwrite.old_tensor);
    }
  }
  for (TensorIdx t = 0; t < graph.num_tensors(); ++t) {
    if (graph.is_pinned(t) && !takes_over[At(t)]) {
      pinned_[At(graph.producer(t) + 1)] += Size(t);
    }
  }
  for (size_t i = 1; i < pinned_.size(); ++i) pinned_[i] += pinned_[i - 1];
  IndexTensors();
}

// What every run asks for again, once.
void Rollout::IndexTensors() {
  at_start_.resize(At(graph_.num_tensors()));
  held_to_.resize(At(graph_.num_ops()));
  may_hand_over_.resize(At(graph_.num_ops()));
  for (TensorIdx t = 0; t < graph_.num_tensors(); ++t) {
    if (!gaps_.has_gaps(t)) continue;
    at_start_[At(t)].gap = gaps_.first(t);
    if (graph_.producer(t) == kNone) with_gaps_at_start_.push_back(t);
    if (graph_.is_output(t)) outputs_.push_back(t);
    if (graph_.release(t) == kNever && !graph_.has_way_back(t)) {
      held_to_end_.push_back(t);
    }
  }
  for (OpIdx op = 0; op < graph_.num_ops(); ++op) {
    for (const TensorIdx t : graph_.released_after(op)) {
      if (gaps_.has_gaps(t) && !graph_.has_way_back(t)) held_to_[At(op)].push_back(t);
    }
    may_hand_over_[At(op)] =
        !graph_.overwrites(op).empty() || !graph_.in_place(op).empty();
  }
}

bool Rollout::Run(const Decisions& decisions, Seconds limit) {
  Start(decisions);
  for (OpIdx op = 0; op < graph_.num_ops(); ++op) {
    if (!MakeInputs(Wanted(op), op, limit)) return false;
    // As if it read them: they are there while it runs.
    for (const TensorIdx t : made_at_split_) Read(t, std::ssize(executions_));
    Execute(op, op, false);
    FinishPosition(op);
  }
  if (!MakeInputs(outputs_, graph_.end(), limit)) return false;
  end_of_reads_ = reads_.size();
  // Read behind the last execution, so alive to the end.
  for (const TensorIdx t : outputs_) Read(t, std::ssize(executions_));
  for (const TensorIdx t : held_to_end_) Hold(t);
  FindTakeOvers();
  SweepLiveBytes();
  return true;
}

Position Rollout::PositionOf(ExecIdx e) const {
  if (e < 0) return kNone;
  if (e >= std::ssize(executions_)) return graph_.end();
  return executions_[At(e)].position;
}

void Rollout::Start(const Decisions& decisions) {
  decisions_ = &decisions;
  recompute_seconds_ = 0;
  executions_.clear();
  versions_.clear();
  reads_.clear();
  discarded_.clear();
  skipped_.clear();
  begins_.clear();
  now_ = at_start_;
  for (const TensorIdx t : with_gaps_at_start_) Make(t, kNone);
}

// What `op` reads, and what is made again where a gap is parted here.
std::span<const TensorIdx> Rollout::Wanted(OpIdx op) {
  const auto inputs = gaps_.inputs(op);
  made_at_split_.clear();
  for (const TensorIdx t : gaps_.split_at(op)) {
    if (decision(t) == kMakeAtEnd) made_at_split_.push_back(t);
  }
  if (made_at_split_.empty()) return inputs;
  wanted_.assign(inputs.begin(), inputs.end());
  wanted_.insert(wanted_.end(), made_at_split_.begin(), made_at_split_.end());
  return wanted_;
}

// Afterwards every tensor of `wanted` is there.
bool Rollout::MakeInputs(std::span<const TensorIdx> wanted, Position position,
                         Seconds limit) {
  bool is_missing = false;
  for (const TensorIdx t : wanted) {
    // Kept for recomputations in the gap that ends here, not for its end.
    if (decision(t) == kKeepInGap) Expire(t);
    is_missing |= !IsThere(t);
  }
  if (!is_missing) return true;
  FindChain(wanted);
  for (const OpIdx op : chain_) Execute(op, position, true);
  return recompute_seconds_ <= limit;
}

// Fills chain_ with the producers to run again, in program order.
void Rollout::FindChain(std::span<const TensorIdx> wanted) {
  ++walk_;
  chain_.clear();
  const auto visit = [&](std::span<const TensorIdx> tensors) {
    for (const TensorIdx t : tensors) {
      if (IsThere(t)) continue;
      const OpIdx op = graph_.producer(t);
      if (!graph_.has_way_back(t)) {
        throw std::logic_error(
            "a tensor is missing and cannot be recomputed. This is a bug in "
            "coop_jax, please report it");
      }
      if (visited_[At(op)] == walk_) continue;
      visited_[At(op)] = walk_;
      chain_.push_back(op);
    }
  };
  visit(wanted);
  for (size_t i = 0; i < chain_.size(); ++i) visit(gaps_.inputs(chain_[i]));
  std::ranges::sort(chain_);
}

void Rollout::Execute(OpIdx op, Position position, bool is_recompute) {
  const ExecIdx execution = std::ssize(executions_);
  executions_.push_back({op, position, is_recompute});
  if (is_recompute) recompute_seconds_ += graph_.seconds(op);
  // Before it are also what it makes for a split: see Run.
  begins_.emplace_back(reads_.size() - made_at_split_.size() * !is_recompute,
                       std::ssize(versions_));
  for (const TensorIdx t : gaps_.inputs(op)) Read(t, execution);
  for (const TensorIdx t : gaps_.outputs(op)) {
    const VersionIdx version = now_[At(t)].version;
    if (version != kNone) {
      skipped_.emplace_back(execution, version);
      continue;
    }
    if (is_recompute && graph_.overwritten_at(t) < position) continue;
    Make(t, execution);
    if (is_recompute) remade_.push_back(t);
  }
}

void Rollout::Make(TensorIdx t, ExecIdx made) {
  now_[At(t)].version = std::ssize(versions_);
  versions_.push_back({.tensor = t, .made = made, .last_read = made});
}

void Rollout::Read(TensorIdx t, ExecIdx reader) {
  const VersionIdx version = now_[At(t)].version;
  versions_[At(version)].last_read = reader;
  reads_.emplace_back(version, reader);
}

void Rollout::Expire(TensorIdx t) {
  VersionIdx& version = now_[At(t)].version;
  if (version == kNone) return;
  versions_[At(version)].expires = std::ssize(executions_) - 1;
  version = kNone;
}

// The operation at hand has run: what it read enters its next gap, what it made
// its first; what was made again stays or goes.
void Rollout::FinishPosition(OpIdx op) {
  const auto enter_next = [&](std::span<const TensorIdx> tensors) {
    for (const TensorIdx t : tensors) {
      ++now_[At(t)].gap;
      if (!(decision(t) & kKeepInGap)) Expire(t);
    }
  };
  enter_next(gaps_.inputs(op));
  for (const TensorIdx t : gaps_.outputs(op)) {
    if (!(decision(t) & kKeepInGap)) Expire(t);
  }
  enter_next(gaps_.split_at(op));
  for (const TensorIdx t : remade_) {
    // A value read here as well, or split here, entered a gap above, and the
    // decision of that held.
    if (gaps_.begin(now_[At(t)].gap) == op) continue;
    if (!(decision(t) & kKeepToEnd)) Expire(t);
  }
  remade_.clear();
  for (const Overwrite& overwrite : graph_.overwrites(op)) {
    if (gaps_.has_gaps(overwrite.old_tensor)) Expire(overwrite.old_tensor);
  }
  for (const TensorIdx t : held_to_[At(op)]) Hold(t);
}

// A value that cannot be made again and that the program holds was alive up to
// here.
void Rollout::Hold(TensorIdx t) {
  const VersionIdx version = now_[At(t)].version;
  if (version == kNone) return;
  ExecIdx& last_read = versions_[At(version)].last_read;
  last_read = std::max<ExecIdx>(last_read, std::ssize(executions_) - 1);
}

// An output is made in the block of an input that nobody reads afterwards.
void Rollout::FindTakeOvers() {
  for (ExecIdx e = 0; e < std::ssize(executions_); ++e) {
    const OpIdx op = executions_[At(e)].op;
    if (!may_hand_over_[At(op)]) continue;
    const bool is_last = e + 1 == std::ssize(executions_);
    const auto [first_read, first_made] = begins_[At(e)];
    const size_t read = is_last ? end_of_reads_ : begins_[At(e + 1)].first;
    const VersionIdx made_here =
        is_last ? std::ssize(versions_) : begins_[At(e + 1)].second;
    if (first_made == made_here) continue;
    const auto find_made = [&](TensorIdx t) {
      for (VersionIdx v = first_made; v < made_here; ++v) {
        if (versions_[At(v)].tensor == t) return v;
      }
      return kNone;
    };
    const auto find_dying = [&](TensorIdx t) {
      for (size_t i = first_read; i < read; ++i) {
        const Version& version = versions_[At(reads_[i].first)];
        if (version.tensor == t && version.last_read == e) {
          return reads_[i].first;
        }
      }
      return kNone;
    };
    const auto hand_over = [&](TensorIdx input, TensorIdx output) {
      const VersionIdx to = find_made(output);
      const VersionIdx from = find_dying(input);
      if (to == kNone || from == kNone || Size(input) != Size(output)) return;
      if (versions_[At(to)].takes_over != kNone) return;
      for (VersionIdx v = first_made; v < made_here; ++v) {
        if (versions_[At(v)].takes_over == from) return;
      }
      versions_[At(to)].takes_over = from;
    };
    for (const Overwrite& o : graph_.overwrites(op)) {
      hand_over(o.old_tensor, o.new_tensor);
    }
    for (const InPlacePair& pair : graph_.in_place(op)) {
      hand_over(pair.input, pair.output);
    }
  }
}

void Rollout::SweepLiveBytes() {
  const ExecIdx end = std::ssize(executions_);
  difference_.assign(At(end) + 2, 0);
  for (const Version& version : versions_) {
    // Where a block is handed over, both would count.
    const ExecIdx from =
        version.takes_over == kNone ? version.made : version.made + 1;
    const ExecIdx until = std::max(version.last_read, version.made);
    const Bytes bytes = Size(version.tensor);
    difference_[At(std::max<ExecIdx>(from, 0))] += bytes;
    difference_[At(std::max<ExecIdx>(until, -1) + 1)] -= bytes;
  }
  for (const auto& [execution, version] : skipped_) {
    const Version& skipped = versions_[At(version)];
    if (skipped.last_read >= execution) continue;
    discarded_.emplace_back(execution, skipped.tensor);
    difference_[At(execution)] += Size(skipped.tensor);
    difference_[At(execution) + 1] -= Size(skipped.tensor);
  }
  live_.resize(At(end));
  peak_bytes_ = start_bytes_;
  Bytes bytes = 0;
  for (ExecIdx e = 0; e < end; ++e) {
    const Execution& execution = executions_[At(e)];
    bytes += difference_[At(e)];
    const Position position = execution.is_recompute
                                  ? execution.position
                                  : execution.position + 1;
    live_[At(e)] =
        bytes + workspace_[At(execution.op)] + pinned_[At(position)];
    peak_bytes_ = std::max(peak_bytes_, live_[At(e)]);
  }
}

}  // namespace coop
