#include "core/online/simulator.h"

#include <limits>
#include <memory>
#include <span>
#include <utility>

#include "core/online/placer.h"
#include "core/online/policy.h"
#include "core/online/recompute.h"
#include "core/online/recorder.h"
#include "core/online/state.h"

namespace coop {
namespace {

// Methods that return bool answer "can planning go on?"; if not, failure_ says
// why.
class Simulator {
 public:
  Simulator(const Graph& graph, Bytes capacity, const OnlineOptions& options,
            int64_t* steps_left);
  PlanResult Run() &&;

 private:
  bool RunProgram();
  bool PlaceGraphInputs();
  bool MakeResident(std::span<const TensorIdx> wanted, OpIdx requested_by);
  bool Execute(StepKind kind, OpIdx op);
  bool SpendSteps();
  void InformPolicy();
  void Advance(OpIdx op);
  void Unpin(TensorIdx t);
  void Destroy(TensorIdx overwritten);
  void ReleaseAfter(Position position);
  bool FailForMemory();

  TensorState& tensor(TensorIdx t) { return state_.tensors[At(t)]; }

  const Graph& graph_;
  const Bytes capacity_;
  int64_t* const steps_left_;
  int64_t num_examined_ = 0;  // Of what the policy looked at, already counted.
  State state_;
  RecomputeOrder recompute_order_;
  std::unique_ptr<Policy> policy_;
  Recorder recorder_;
  Placer placer_;
  Seconds clock_limit_ = std::numeric_limits<Seconds>::infinity();
  PlanFailure failure_;
  // The operation at hand, and the one on whose behalf it runs.
  OpIdx op_ = kNone;
  OpIdx requested_by_ = kNone;
};

Simulator::Simulator(const Graph& graph, Bytes capacity,
                     const OnlineOptions& options, int64_t* steps_left)
    : graph_(graph),
      capacity_(capacity),
      steps_left_(steps_left),
      state_(graph, capacity, options.common.alignment),
      recompute_order_(state_),
      policy_(MakePolicy(state_, options)),
      recorder_(state_, capacity, CopiesOnWrite(options)),
      placer_(options, state_, *policy_, recorder_) {
  if (options.common.overhead_limit) {
    Seconds program_seconds = 0;
    for (OpIdx op = 0; op < graph.num_ops(); ++op) {
      program_seconds += graph.seconds(op);
    }
    clock_limit_ = *options.common.overhead_limit * program_seconds;
  }
}

PlanResult Simulator::Run() && {
  if (!RunProgram()) return failure_;
  Schedule schedule = std::move(recorder_).Finish();
  schedule.statistics.pieces_examined = policy_->pieces_examined();
  schedule.statistics.density_threshold = placer_.density_threshold();
  return schedule;
}

bool Simulator::RunProgram() {
  if (!PlaceGraphInputs()) return false;
  ReleaseAfter(kNone);
  for (OpIdx op = 0; op < graph_.num_ops(); ++op) {
    state_.position = op;
    if (!MakeResident(graph_.inputs(op), op)) return false;
    if (!Execute(StepKind::kCompute, op)) return false;
    ReleaseAfter(op);
  }
  for (TensorIdx t = 0; t < graph_.num_tensors(); ++t) {
    if (!graph_.is_output(t)) continue;
    // The pin of this last read is never given back.
    if (!MakeResident({&t, 1}, graph_.end())) return false;
  }
  return true;
}

bool Simulator::PlaceGraphInputs() {
  for (TensorIdx t = 0; t < graph_.num_tensors(); ++t) {
    if (graph_.producer(t) != kNone) continue;
    tensor(t).is_resident = true;
    if (graph_.is_external(t)) continue;
    if (!placer_.PlaceInput(t)) return FailForMemory();
  }
  recorder_.RecordInputs();
  return true;
}

// Afterwards `wanted` is resident and pinned, once each.
bool Simulator::MakeResident(std::span<const TensorIdx> wanted,
                             OpIdx requested_by) {
  requested_by_ = requested_by;
  const auto order = recompute_order_.For(wanted);
  // One pin per read, also for what is still to be made: it holds from then.
  for (const OpIdx op : order) {
    for (const TensorIdx t : graph_.inputs(op)) ++tensor(t).pins;
  }
  for (const TensorIdx t : wanted) ++tensor(t).pins;
  for (const OpIdx op : order) {
    if (!Execute(StepKind::kRecompute, op)) return false;
  }
  return true;
}

// Runs `op`, whose inputs are resident, and takes back their pins.
bool Simulator::Execute(StepKind kind, OpIdx op) {
  op_ = op;
  if (state_.clock > clock_limit_) {
    failure_ = {.reason = PlanFailure::Reason::kOverheadLimit,
                .op = op_,
                .requested_by = requested_by_,
                .capacity = capacity_};
    return false;
  }
  if (!SpendSteps()) return false;
  // Also those outputs that are resident already, if this is a recomputation:
  // evicted for a sibling's sake they would have to be made right now as well.
  for (const TensorIdx t : graph_.outputs(op)) ++tensor(t).pins;
  if (!placer_.PlaceRun(kind, op)) return FailForMemory();
  const PieceIdx workspace = placer_.workspace();
  recorder_.RecordRun(kind, op, placer_.made(), workspace);
  InformPolicy();
  if (workspace != kNone) state_.pool.Release(workspace);
  Advance(op);
  if (kind == StepKind::kCompute) {
    for (const TensorIdx t : graph_.outputs(op)) tensor(t).is_resident = true;
    for (const Overwrite& overwrite : graph_.overwrites(op)) {
      Destroy(overwrite.old_tensor);
    }
  }
  for (const TensorIdx t : graph_.inputs(op)) Unpin(t);
  for (const TensorIdx t : graph_.outputs(op)) Unpin(t);
  return true;
}

// False if none are left.
bool Simulator::SpendSteps() {
  if (steps_left_ == nullptr) return true;
  const int64_t examined = policy_->pieces_examined();
  *steps_left_ -= 1 + examined - std::exchange(num_examined_, examined);
  if (*steps_left_ >= 0) return true;
  failure_ = {.reason = PlanFailure::Reason::kEffort,
              .op = op_,
              .requested_by = requested_by_,
              .capacity = capacity_};
  return false;
}

void Simulator::InformPolicy() {
  for (const Made& made : placer_.made()) policy_->OnMake(made.tensor);
  for (const Made& made : placer_.made()) {
    if (made.taken_over != kNone && graph_.has_way_back(made.taken_over)) {
      policy_->OnEvict(made.taken_over);
    }
  }
}

// A tensor counts as accessed when the operation that uses it starts.
void Simulator::Advance(OpIdx op) {
  for (const TensorIdx t : graph_.inputs(op)) {
    tensor(t).last_access = state_.clock;
  }
  for (const Made& made : placer_.made()) {
    tensor(made.tensor).last_access = state_.clock;
  }
  state_.clock += graph_.seconds(op);
}

void Simulator::Unpin(TensorIdx t) {
  TensorState& unpinned = tensor(t);
  if (--unpinned.pins > 0) return;
  if (unpinned.is_released && unpinned.is_resident) {
    placer_.Drop(t, StepKind::kFree);
  }
}

void Simulator::Destroy(TensorIdx overwritten) {
  tensor(overwritten).is_gone = true;
  if (tensor(overwritten).piece != kNone) {
    placer_.Drop(overwritten, StepKind::kFree);  // Copy on write.
  }
  tensor(overwritten).is_resident = false;
}

void Simulator::ReleaseAfter(Position position) {
  for (const TensorIdx t : graph_.released_after(position)) {
    tensor(t).is_released = true;
    if (tensor(t).is_resident) placer_.Drop(t, StepKind::kFree);
  }
}

bool Simulator::FailForMemory() {
  const Pool& pool = state_.pool;
  failure_ = {.reason = PlanFailure::Reason::kOutOfMemory,
              .op = op_,
              .requested_by = requested_by_,
              .requested_bytes =
                  RoundUp(placer_.missing_bytes(), pool.alignment()),
              .free_bytes = pool.free_bytes(),
              .largest_free_bytes = pool.largest_free_bytes(),
              .pinned_bytes = 0,
              .capacity = capacity_};
  for (PieceIdx i = pool.first(); i != kNone; i = pool.piece(i).next) {
    const Piece& piece = pool.piece(i);
    if (!piece.is_free && !state_.IsEvictableNow(piece)) {
      failure_.pinned_bytes += piece.bytes;
    }
  }
  return false;
}

}  // namespace

PlanResult Simulate(const Graph& graph, Bytes capacity,
                    const OnlineOptions& options, int64_t* steps_left) {
  return Simulator(graph, capacity, options, steps_left).Run();
}

}  // namespace coop
