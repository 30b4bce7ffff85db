#include "core/schedule/validator.h"

#include <algorithm>
#include <map>
#include <vector>

#include "core/schedule/block_map.h"

namespace coop {
namespace {

class Replay {
 public:
  Replay(const Graph& graph, const Schedule& schedule, const Limits& limits)
      : graph_(graph),
        schedule_(schedule),
        limits_(limits),
        blocks_(schedule.capacity, schedule.alignment, log_),
        tensors_(At(graph.num_tensors())),
        next_placement_(schedule.placements.begin()),
        next_workspace_(schedule.workspaces.begin()) {}

  std::vector<ViolationReport> Run() && {
    PlaceGraphInputs();
    for (const Step& step : schedule_.steps) {
      log_.NextStep();
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
    log_.NextStep();
    CheckEnd();
    figures_.peak_bytes = blocks_.peak_bytes();
    CheckClaims(schedule_, figures_, limits_, log_);
    return log_.Take();
  }

 private:
  struct Tensor {
    bool is_resident = false;
    bool is_overwritten = false;
    Offset offset = 0;
  };

  template <typename... Parts>
  void Report(Violation violation, const Parts&... parts) {
    log_.Report(violation, parts...);
  }

  Tensor& tensor(TensorIdx t) { return tensors_[At(t)]; }

  bool IsTensor(TensorIdx t) const {
    return t >= 0 && t < graph_.num_tensors();
  }

  bool IsInPool(TensorIdx t) const {
    return !graph_.is_external(t) && graph_.bytes(t) > 0;
  }

  void BeginLiving(TensorIdx t) {
    if (IsInPool(t)) live_bytes_ += blocks_.Rounded(graph_.bytes(t));
  }

  void EndLiving(TensorIdx t) {
    if (IsInPool(t)) live_bytes_ -= blocks_.Rounded(graph_.bytes(t));
  }

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
        if (IsInPool(t)) blocks_.Add(t, offset, graph_.bytes(t));
      }
    }
    for (TensorIdx t = 0; t < graph_.num_tensors(); ++t) {
      if (graph_.producer(t) == kNone && !tensor(t).is_resident) {
        Report(Violation::kPlacement, "graph input ", t,
               " has no initial placement");
      }
    }
    figures_.max_live_bytes = live_bytes_;
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
    if (step.kind == StepKind::kEvict) ++figures_.forced_evictions;
    if (step.kind == StepKind::kFree && graph_.is_evictable(t)) {
      ++figures_.eager_evictions;
    }
    if (IsInPool(t)) blocks_.Remove(t, tensor(t).offset);
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
    figures_.max_live_bytes =
        std::max(figures_.max_live_bytes,
                 live_bytes_ + blocks_.Rounded(graph_.workspace_bytes(op)));
    if (!is_first) {
      figures_.recompute_seconds += graph_.seconds(op);
      ++figures_.recomputations;
      return;
    }
    figures_.compute_seconds += graph_.seconds(op);
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
           next_placement_->step <= log_.step()) {
      if (next_placement_->step < log_.step()) {
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
      if (IsInPool(t)) blocks_.Add(t, offset, graph_.bytes(t));
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
           next_workspace_->step <= log_.step()) {
      const auto [step, offset] = *next_workspace_++;
      if (step < log_.step()) {
        Report(Violation::kMalformed, "a workspace of step ", step,
               " that runs no operation or is listed out of order");
        continue;
      }
      ++num_workspaces;
      if (graph_.workspace_bytes(op) == 0) continue;
      blocks_.Add(kNone, offset, graph_.workspace_bytes(op));
      blocks_.Remove(kNone, offset);
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

  const Graph& graph_;
  const Schedule& schedule_;
  const Limits& limits_;
  ViolationLog log_;
  BlockMap blocks_;
  std::vector<Tensor> tensors_;
  // Dropped since the last operation, with their offsets.
  std::map<TensorIdx, Offset> just_dropped_;
  std::vector<TensorIdx> pinned_dropped_;
  std::vector<Placement>::const_iterator next_placement_;
  std::vector<WorkspacePlacement>::const_iterator next_workspace_;
  OpIdx num_computed_ = 0;
  Bytes live_bytes_ = 0;
  Statistics figures_;  // Of the steps so far.
};

}  // namespace

std::vector<ViolationReport> Validate(const Graph& graph,
                                      const Schedule& schedule,
                                      const Limits& limits) {
  return Replay(graph, schedule, limits).Run();
}

}  // namespace coop
