#include "core/schedule/validator.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <sstream>

namespace coop {
namespace {

class Replay {
 public:
  Replay(const Graph& graph, const Schedule& schedule, const Limits& limits)
      : graph_(graph),
        schedule_(schedule),
        limits_(limits),
        tensors_(At(graph.num_tensors())),
        next_placement_(schedule.placements.begin()),
        next_workspace_(schedule.workspaces.begin()) {}

  std::vector<ViolationReport> Run() && {
    PlaceGraphInputs();
    for (const Step& step : schedule_.steps) {
      ++step_;
      const bool is_run = step.kind == StepKind::kCompute ||
                          step.kind == StepKind::kRecompute;
      const bool is_drop =
          step.kind == StepKind::kEvict || step.kind == StepKind::kFree;
      if (!is_run && !is_drop) {
        Report(Violation::kMalformed, "unknown step kind ",
               static_cast<int64_t>(step.kind));
        continue;
      }
      const auto limit = is_run ? graph_.num_ops() : graph_.num_tensors();
      if (step.index < 0 || step.index >= limit) {
        Report(Violation::kMalformed, is_run ? "operation " : "tensor ",
               step.index, " is not one of the ", limit);
        continue;
      }
      if (is_run) {
        RunOp(step);
        just_dropped_.clear();
      } else {
        Drop(step);
      }
    }
    ++step_;
    CheckEnd();
    CheckClaims();
    return std::move(reports_);
  }

 private:
  struct Tensor {
    bool is_resident = false;
    bool is_overwritten = false;
    Offset offset = 0;
  };
  struct Block {
    Offset end;
    TensorIdx tensor;  // kNone: a workspace.
  };

  template <typename... Parts>
  void Report(Violation violation, const Parts&... parts) {
    std::ostringstream text;
    (text << ... << parts);
    reports_.push_back({violation, step_, text.str()});
  }

  Tensor& tensor(TensorIdx t) { return tensors_[At(t)]; }

  bool IsTensor(TensorIdx t) const {
    return t >= 0 && t < graph_.num_tensors();
  }

  bool IsInPool(TensorIdx t) const {
    return !graph_.is_external(t) && graph_.bytes(t) > 0;
  }

  static std::string NameOf(TensorIdx t) {
    return t == kNone ? "a workspace" : "tensor " + std::to_string(t);
  }

  // Rounded up to the alignment.
  Bytes Rounded(Bytes bytes) const {
    return (bytes + schedule_.alignment - 1) / schedule_.alignment *
           schedule_.alignment;
  }

  // No Offset lies beyond it: corrupt schedules have offsets of any size.
  static Offset EndOf(Offset offset, Bytes bytes) {
    constexpr Offset kLast = std::numeric_limits<Offset>::max();
    return offset > kLast - bytes ? kLast : offset + bytes;
  }

  // Blocks ---------------------------------------------------------------

  void BeginLiving(TensorIdx t) {
    if (IsInPool(t)) live_bytes_ += Rounded(graph_.bytes(t));
  }

  void EndLiving(TensorIdx t) {
    if (IsInPool(t)) live_bytes_ -= Rounded(graph_.bytes(t));
  }

  void AddBlock(TensorIdx t, Offset offset, Bytes bytes) {
    if (offset % schedule_.alignment != 0) {
      Report(Violation::kAlignment, NameOf(t), " at ", offset,
             " is not aligned to ", schedule_.alignment);
    }
    if (offset < 0 || offset > schedule_.capacity - bytes) {
      Report(Violation::kOutOfRange, NameOf(t), " at [", offset, ", ",
             EndOf(offset, bytes), ") is outside the pool of ", schedule_.capacity);
      return;
    }
    peak_ = std::max(peak_, EndOf(offset, Rounded(bytes)));
    const Offset end = offset + bytes;
    const auto after = blocks_.lower_bound(offset);
    if (after != blocks_.end() && after->first < end) {
      Overlap(t, offset, end, after->first, after->second);
    }
    if (after != blocks_.begin()) {
      const auto before = std::prev(after);
      if (before->second.end > offset) {
        Overlap(t, offset, end, before->first, before->second);
      }
    }
    blocks_.insert_or_assign(offset, Block{end, t});
  }

  void Overlap(TensorIdx t, Offset begin, Offset end, Offset other_begin,
               const Block& other) {
    Report(Violation::kOverlap, NameOf(t), " at [", begin, ", ", end,
           ") overlaps ", NameOf(other.tensor), " at [", other_begin, ", ",
           other.end, ")");
  }

  void RemoveBlock(TensorIdx t, Offset offset) {
    const auto block = blocks_.find(offset);
    if (block != blocks_.end() && block->second.tensor == t) {
      blocks_.erase(block);
    }
  }

  // Steps ----------------------------------------------------------------

  void PlaceGraphInputs() {
    for (TensorIdx t = 0; t < graph_.num_tensors(); ++t) {
      if (graph_.producer(t) == kNone && graph_.is_external(t)) {
        tensor(t).is_resident = true;
      }
    }
    for (const auto& [t, offset] : schedule_.initial_placements) {
      if (!IsTensor(t)) {
        Report(Violation::kMalformed, "initial placement of tensor ", t,
               ", which does not exist");
      } else if (graph_.producer(t) != kNone || graph_.is_external(t) ||
                 tensor(t).is_resident) {
        Report(Violation::kPlacement, "initial placement of tensor ", t,
               ", which is no graph input in the pool or placed before");
      } else {
        tensor(t) = {.is_resident = true, .offset = offset};
        BeginLiving(t);
        if (IsInPool(t)) AddBlock(t, offset, graph_.bytes(t));
      }
    }
    for (TensorIdx t = 0; t < graph_.num_tensors(); ++t) {
      if (graph_.producer(t) == kNone && !tensor(t).is_resident) {
        Report(Violation::kPlacement, "graph input ", t,
               " has no initial placement");
      }
    }
    max_live_bytes_ = live_bytes_;
  }

  void Drop(const Step& step) {
    const TensorIdx t = step.index;
    if (!tensor(t).is_resident) {
      Report(Violation::kNotResident, "tensor ", t,
             " is dropped but not resident");
      return;
    }
    if (graph_.is_external(t)) {
      Report(Violation::kPinned, "tensor ", t, " is external and dropped");
      return;
    }
    const bool may_move = schedule_.copy_on_write && tensor(t).is_overwritten;
    if (graph_.is_pinned(t) && !may_move) {
      // Right, if the next operation overwrites it in place.
      pinned_dropped_.push_back(t);
    }
    if (step.kind == StepKind::kEvict) ++num_evictions_;
    if (step.kind == StepKind::kFree && graph_.is_evictable(t)) {
      ++num_eager_evictions_;
    }
    if (IsInPool(t)) RemoveBlock(t, tensor(t).offset);
    EndLiving(t);
    tensor(t).is_resident = false;
    just_dropped_[t] = tensor(t).offset;
  }

  void RunOp(const Step& step) {
    const OpIdx op = step.index;
    const bool is_first = step.kind == StepKind::kCompute;
    CheckOrder(op, is_first);
    const auto placements = PlacementsOfStep();
    CheckOperands(op, placements);
    CheckTakeOvers(op, is_first, placements);
    PlaceOutputs(op, is_first, placements);
    UseWorkspace(op);
    max_live_bytes_ = std::max(
        max_live_bytes_, live_bytes_ + Rounded(graph_.workspace_bytes(op)));
    (is_first ? compute_seconds_ : recompute_seconds_) += graph_.seconds(op);
    if (!is_first) ++num_recomputations_;
    if (!is_first) return;
    for (const TensorIdx t : graph_.outputs(op)) {
      if (graph_.is_external(t)) tensor(t).is_resident = true;
    }
    for (const auto& [_, old_tensor, new_tensor] : graph_.overwrites(op)) {
      tensor(old_tensor).is_overwritten = true;
      if (graph_.is_external(old_tensor)) {
        tensor(old_tensor).is_resident = false;
      }
    }
  }

  void CheckOrder(OpIdx op, bool is_first) {
    if (is_first) {
      if (op != num_computed_) {
        Report(Violation::kOrder, "operation ", op, " is computed, it is ",
               num_computed_, "'s turn");
      }
      num_computed_ = std::max(num_computed_, op + 1);
    } else if (!graph_.is_recomputable(op)) {
      Report(Violation::kNotRecomputable, "operation ", op,
             " may not run twice");
    } else if (op >= num_computed_) {
      Report(Violation::kNotRecomputable, "operation ", op,
             " is recomputed before it was computed");
    }
  }

  std::vector<Placement> PlacementsOfStep() {
    std::vector<Placement> placements;
    while (next_placement_ != schedule_.placements.end() &&
           next_placement_->step <= step_) {
      if (next_placement_->step < step_) {
        Report(Violation::kMalformed, "a placement of step ",
               next_placement_->step, " that runs no operation or is listed "
               "out of order");
      } else {
        placements.push_back(*next_placement_);
      }
      ++next_placement_;
    }
    return placements;
  }

  static bool IsTakenOver(const std::vector<Placement>& placements,
                          TensorIdx t) {
    return std::ranges::any_of(placements, [&](const Placement& placement) {
      return placement.taken_over == t;
    });
  }

  void CheckOperands(OpIdx op, const std::vector<Placement>& placements) {
    for (const TensorIdx t : graph_.inputs(op)) {
      if (tensor(t).is_overwritten) {
        Report(Violation::kOverwritten, "operation ", op, " reads tensor ", t,
               ", which has been overwritten");
      } else if (!tensor(t).is_resident &&
                 !(just_dropped_.contains(t) && IsTakenOver(placements, t))) {
        Report(Violation::kMissingOperand, "operation ", op, " reads tensor ",
               t, ", which is not resident");
      }
    }
  }

  bool MayTakeOver(OpIdx op, TensorIdx from, TensorIdx to) const {
    for (const auto& [_, input, output] : graph_.in_place(op)) {
      if (input == from && output == to) return true;
    }
    for (const auto& [_, old_tensor, new_tensor] : graph_.overwrites(op)) {
      if (old_tensor == from && new_tensor == to) return true;
    }
    return false;
  }

  void CheckTakeOvers(OpIdx op, bool is_first,
                      const std::vector<Placement>& placements) {
    for (const auto& [_, t, offset, taken_over] : placements) {
      if (taken_over == kNone) continue;
      const auto dropped = just_dropped_.find(taken_over);
      if (!MayTakeOver(op, taken_over, t)) {
        Report(Violation::kTakeOver, "operation ", op, " may not let tensor ",
               t, " take over the block of tensor ", taken_over);
      } else if (dropped == just_dropped_.end()) {
        Report(Violation::kTakeOver, "tensor ", taken_over,
               " is taken over but not dropped right before");
      } else if (dropped->second != offset) {
        Report(Violation::kTakeOver, "tensor ", t, " at ", offset,
               " takes over the block of tensor ", taken_over, ", which is at ",
               dropped->second);
      }
    }
    if (is_first) CheckPinnedOverwrites(op, placements);
    for (const TensorIdx t : pinned_dropped_) {
      Report(Violation::kPinned, "tensor ", t, " is pinned and dropped");
    }
    pinned_dropped_.clear();
  }

  // A pinned tensor that is overwritten hands its block on.
  void CheckPinnedOverwrites(OpIdx op,
                             const std::vector<Placement>& placements) {
    for (const auto& [_, old_tensor, new_tensor] : graph_.overwrites(op)) {
      if (!graph_.is_pinned(old_tensor) || !IsInPool(old_tensor)) continue;
      if (IsTakenOver(placements, old_tensor)) {
        std::erase(pinned_dropped_, old_tensor);
      } else if (!schedule_.copy_on_write) {
        Report(Violation::kPinned, "tensor ", old_tensor,
               " is pinned, but tensor ", new_tensor,
               " overwrites it at another place");
      }
    }
  }

  void PlaceOutputs(OpIdx op, bool is_first,
                    const std::vector<Placement>& placements) {
    for (const auto& [_, t, offset, taken_over] : placements) {
      if (!IsTensor(t) || graph_.producer(t) != op || graph_.is_external(t)) {
        Report(Violation::kPlacement, "operation ", op,
               " makes no tensor ", t, " in the pool");
        continue;
      }
      if (tensor(t).is_resident || tensor(t).is_overwritten) {
        Report(Violation::kPlacement, "tensor ", t,
               " is placed but resident or overwritten");
        continue;
      }
      tensor(t).is_resident = true;
      tensor(t).offset = offset;
      BeginLiving(t);
      if (IsInPool(t)) AddBlock(t, offset, graph_.bytes(t));
    }
    for (const TensorIdx t : graph_.outputs(op)) {
      if (graph_.is_external(t) || tensor(t).is_resident) continue;
      if (!is_first && tensor(t).is_overwritten) continue;
      Report(Violation::kPlacement, "operation ", op, " makes tensor ", t,
             " but nowhere to put it");
    }
  }

  void UseWorkspace(OpIdx op) {
    int64_t num_workspaces = 0;
    while (next_workspace_ != schedule_.workspaces.end() &&
           next_workspace_->step <= step_) {
      const auto [step, offset] = *next_workspace_++;
      if (step < step_) {
        Report(Violation::kMalformed, "a workspace of step ", step,
               " that runs no operation or is listed out of order");
        continue;
      }
      ++num_workspaces;
      if (graph_.workspace_bytes(op) == 0) continue;
      AddBlock(kNone, offset, graph_.workspace_bytes(op));
      RemoveBlock(kNone, offset);
    }
    const int64_t expected = graph_.workspace_bytes(op) > 0 ? 1 : 0;
    if (num_workspaces != expected) {
      Report(Violation::kPlacement, "operation ", op, " needs ", expected,
             " workspaces, got ", num_workspaces);
    }
  }

  void CheckEnd() {
    if (num_computed_ != graph_.num_ops()) {
      Report(Violation::kOrder, "only ", num_computed_, " of ",
             graph_.num_ops(), " operations are computed");
    }
    if (next_placement_ != schedule_.placements.end() ||
        next_workspace_ != schedule_.workspaces.end()) {
      Report(Violation::kMalformed, "a placement or workspace of no step");
    }
    for (const TensorIdx t : pinned_dropped_) {
      Report(Violation::kPinned, "tensor ", t, " is pinned and dropped");
    }
    for (TensorIdx t = 0; t < graph_.num_tensors(); ++t) {
      if (graph_.is_output(t) && !tensor(t).is_resident) {
        Report(Violation::kMissingOutput, "output ", t,
               " is not resident at the end");
      }
    }
  }

  void CheckClaims() {
    const Statistics& claimed = schedule_.statistics;
    if (peak_ != claimed.peak_bytes) {
      Report(Violation::kPeak, "the highest end address is ", peak_,
             ", claimed ", claimed.peak_bytes);
    }
    const bool claims_live_bytes =
        schedule_.has_statistics || claimed.max_live_bytes != kNone;
    if (claims_live_bytes && max_live_bytes_ != claimed.max_live_bytes) {
      Report(Violation::kLiveBytes, "the most bytes in use at once are ",
             max_live_bytes_, ", claimed ", claimed.max_live_bytes);
    }
    if (schedule_.has_statistics) CheckStatistics(claimed);
    CheckLimit("the highest end address", peak_, limits_.pool_bytes);
    CheckLimit("what is in use at once", max_live_bytes_,
               limits_.live_bytes);
  }

  void CheckStatistics(const Statistics& claimed) {
    const auto count = [&](const char* name, int64_t counted, int64_t claim) {
      if (counted == claim) return;
      Report(Violation::kStatistics, "`", name, "` is ", counted, ", claimed ",
             claim);
    };
    count("forced_evictions", num_evictions_, claimed.forced_evictions);
    count("eager_evictions", num_eager_evictions_, claimed.eager_evictions);
    count("recomputations", num_recomputations_, claimed.recomputations);
    const auto sum = [&](const char* name, Seconds summed, Seconds claim) {
      // In another order they add up to a little more or less.
      if (std::abs(summed - claim) <= 1e-9 * summed) return;
      Report(Violation::kStatistics, "`", name, "` is ", summed, ", claimed ",
             claim);
    };
    sum("compute_seconds", compute_seconds_, claimed.compute_seconds);
    sum("recompute_seconds", recompute_seconds_, claimed.recompute_seconds);
  }

  void CheckLimit(const char* what, Bytes needed, std::optional<Bytes> limit) {
    if (!limit || needed <= *limit) return;
    Report(Violation::kLimit, what, " needs ", needed,
           " bytes, promised were ", *limit);
  }

  const Graph& graph_;
  const Schedule& schedule_;
  const Limits& limits_;
  std::vector<ViolationReport> reports_;
  std::vector<Tensor> tensors_;
  std::map<Offset, Block> blocks_;  // Live blocks by begin.
  // Dropped since the last operation, with their offsets.
  std::map<TensorIdx, Offset> just_dropped_;
  std::vector<TensorIdx> pinned_dropped_;
  std::vector<Placement>::const_iterator next_placement_;
  std::vector<WorkspacePlacement>::const_iterator next_workspace_;
  int64_t step_ = kNone;
  OpIdx num_computed_ = 0;
  Bytes peak_ = 0;
  Bytes live_bytes_ = 0;
  Bytes max_live_bytes_ = 0;
  int64_t num_evictions_ = 0;
  int64_t num_eager_evictions_ = 0;
  int64_t num_recomputations_ = 0;
  Seconds compute_seconds_ = 0;
  Seconds recompute_seconds_ = 0;
};

}  // namespace

const char* Name(Violation violation) {
  switch (violation) {
    case Violation::kMalformed: return "malformed";
    case Violation::kOrder: return "order";
    case Violation::kNotRecomputable: return "not_recomputable";
    case Violation::kMissingOperand: return "missing_operand";
    case Violation::kOverwritten: return "overwritten";
    case Violation::kPlacement: return "placement";
    case Violation::kOutOfRange: return "out_of_range";
    case Violation::kAlignment: return "alignment";
    case Violation::kOverlap: return "overlap";
    case Violation::kTakeOver: return "take_over";
    case Violation::kNotResident: return "not_resident";
    case Violation::kPinned: return "pinned";
    case Violation::kMissingOutput: return "missing_output";
    case Violation::kPeak: return "peak";
    case Violation::kLiveBytes: return "live_bytes";
    case Violation::kStatistics: return "statistics";
    case Violation::kLimit: return "limit";
  }
  return "unknown";
}

std::vector<ViolationReport> Validate(const Graph& graph,
                                      const Schedule& schedule,
                                      const Limits& limits) {
  return Replay(graph, schedule, limits).Run();
}

}  // namespace coop
