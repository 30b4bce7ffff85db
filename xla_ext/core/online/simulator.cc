#include "core/online/simulator.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "core/online/density.h"
#include "core/online/policy.h"
#include "core/online/recompute.h"
#include "core/online/state.h"

namespace coop {
namespace {

// Methods that return bool answer "can planning go on?"; if not, failure_ says
// why.
class Simulator {
 public:
  Simulator(const Graph& graph, Bytes capacity, const OnlineOptions& options);
  PlanResult Run() &&;

 private:
  // An output of the operation at hand.
  struct Made {
    TensorIdx tensor;
    TensorIdx taken_over = kNone;
    StepKind drop_kind = StepKind::kFree;  // Of taken_over.
  };
  enum class Room { kMade, kByTakingOver, kNone };

  bool RunProgram();
  bool PlaceGraphInputs();
  bool MakeResident(std::span<const TensorIdx> wanted, OpIdx requested_by);
  bool Execute(StepKind kind, OpIdx op);

  // Blocks.
  bool PlaceOutputs(StepKind kind, OpIdx op);
  bool PlaceWorkspace(OpIdx op);
  Room MakeRoom(Bytes bytes, TensorIdx consumable);
  TensorIdx FindDeadInput(StepKind kind, OpIdx op, TensorIdx output) const;
  TensorIdx FindConsumableInput(OpIdx op, TensorIdx output);
  bool IsLastReader(TensorIdx input) const;
  void Place(TensorIdx output, PieceIdx piece);
  void TakeOver(Made& made, TensorIdx input, StepKind drop_kind);
  void Drop(TensorIdx t, StepKind kind);
  Side SideOf(OpIdx op, bool is_evictable) const;

  // Books.
  void Record(StepKind kind, OpIdx op);
  void RecordDrop(TensorIdx t, StepKind kind);
  void RecordLiveBytes();
  void Advance(StepKind kind, OpIdx op);
  void Unpin(TensorIdx t);
  void Destroy(TensorIdx overwritten);
  void ReleaseAfter(Position position);
  bool FailForMemory(Bytes requested_bytes);
  void Summarise();

  TensorState& tensor(TensorIdx t) { return state_.tensors[At(t)]; }
  const TensorState& tensor(TensorIdx t) const { return state_.tensors[At(t)]; }

  const Graph& graph_;
  const OnlineOptions& options_;
  const bool lays_out_like_coop_;
  const bool copies_on_write_;
  State state_;
  RecomputeOrder recompute_order_;
  std::unique_ptr<Policy> policy_;
  double density_threshold_ = 0;
  Seconds clock_limit_ = std::numeric_limits<Seconds>::infinity();
  Schedule schedule_;
  PlanFailure failure_;
  // The operation at hand, on whose behalf it runs, and its blocks.
  OpIdx op_ = kNone;
  OpIdx requested_by_ = kNone;
  std::vector<Made> made_;
  PieceIdx workspace_ = kNone;
};

Simulator::Simulator(const Graph& graph, Bytes capacity,
                     const OnlineOptions& options)
    : graph_(graph),
      options_(options),
      lays_out_like_coop_(LaysOutLikeCoop(options)),
      copies_on_write_(CopiesOnWrite(options)),
      state_(graph, capacity, options.common.alignment),
      recompute_order_(state_),
      policy_(MakePolicy(state_, options)) {
  schedule_.capacity = capacity;
  schedule_.alignment = options.common.alignment;
  schedule_.copy_on_write = copies_on_write_;
  if (lays_out_like_coop_ && options.coop.partition) {
    density_threshold_ = options.coop.density_threshold
                             ? *options.coop.density_threshold
                             : DensityThreshold(graph);
  }
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
  Summarise();
  return std::move(schedule_);
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
    Offset offset = 0;
    if (graph_.bytes(t) > 0) {
      const auto piece = state_.pool.Allocate(graph_.bytes(t), Side::kLeft, t);
      if (!piece) return FailForMemory(graph_.bytes(t));
      tensor(t).piece = *piece;
      offset = state_.pool.piece(*piece).offset;
    }
    schedule_.initial_placements.push_back({t, offset});
  }
  RecordLiveBytes();
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
                .capacity = schedule_.capacity};
    return false;
  }
  // Also those outputs that are resident already, if this is a recomputation:
  // evicted for a sibling's sake they would have to be made right now as well.
  for (const TensorIdx t : graph_.outputs(op)) ++tensor(t).pins;
  if (!PlaceOutputs(kind, op) || !PlaceWorkspace(op)) return false;
  Record(kind, op);
  if (workspace_ != kNone) state_.pool.Release(workspace_);
  Advance(kind, op);
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

// Fills made_: what this run makes, each tensor in its block.
bool Simulator::PlaceOutputs(StepKind kind, OpIdx op) {
  made_.clear();
  for (const TensorIdx t : graph_.outputs(op)) {
    if (graph_.is_external(t) || tensor(t).is_resident || tensor(t).is_gone) {
      continue;
    }
    made_.push_back({.tensor = t});
  }
  // First what needs no new block, so that no other output evicts for nothing.
  for (Made& made : made_) {
    if (graph_.bytes(made.tensor) == 0) {
      Place(made.tensor, kNone);
      continue;
    }
    const TensorIdx input = FindDeadInput(kind, op, made.tensor);
    if (input != kNone) TakeOver(made, input, StepKind::kFree);
  }
  for (Made& made : made_) {
    const TensorIdx t = made.tensor;
    if (tensor(t).is_resident) continue;
    if (!state_.pool.Fits(graph_.bytes(t))) {
      const TensorIdx input = FindConsumableInput(op, t);
      const Room room = MakeRoom(graph_.bytes(t), input);
      if (room == Room::kNone) return false;
      if (room == Room::kByTakingOver) {
        TakeOver(made, input, StepKind::kEvict);
        continue;
      }
    }
    const Side side = SideOf(op, graph_.is_evictable(t));
    Place(t, *state_.pool.Allocate(graph_.bytes(t), side, t));
  }
  return true;
}

bool Simulator::PlaceWorkspace(OpIdx op) {
  workspace_ = kNone;
  const Bytes bytes = graph_.workspace_bytes(op);
  if (bytes == 0) return true;
  if (!state_.pool.Fits(bytes) && MakeRoom(bytes, kNone) == Room::kNone) {
    return false;
  }
  workspace_ = *state_.pool.Allocate(bytes, SideOf(op, true), kNone);
  return true;
}

// Evicts until `bytes` fit, or says that the output had better overwrite
// `consumable` (kNone: there is no such input).
Simulator::Room Simulator::MakeRoom(Bytes bytes, TensorIdx consumable) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  Event event{.requested_bytes = RoundUp(bytes, options_.common.alignment)};
  Room room = Room::kMade;
  while (!state_.pool.Fits(bytes)) {
    const auto eviction = policy_->Choose(event.requested_bytes);
    if (consumable != kNone &&
        (!eviction || policy_->Cost(consumable) < eviction->cost)) {
      room = Room::kByTakingOver;
      ++event.evictions;
      event.free_bytes += event.requested_bytes;
      break;
    }
    if (!eviction) {
      FailForMemory(bytes);
      return Room::kNone;
    }
    for (const TensorIdx t : eviction->victims) Drop(t, StepKind::kEvict);
    event.evictions += std::ssize(eviction->victims);
  }
  event.free_bytes += state_.pool.free_bytes();
  event.nanoseconds = std::chrono::duration_cast<std::chrono::nanoseconds>(
                          Clock::now() - start)
                          .count();
  schedule_.events.push_back(event);
  return room;
}

// An input whose block `output` takes over because nothing needs it any more.
TensorIdx Simulator::FindDeadInput(StepKind kind, OpIdx op,
                                   TensorIdx output) const {
  if (copies_on_write_) return kNone;
  for (const Overwrite& overwrite : graph_.overwrites(op)) {
    if (overwrite.new_tensor == output) return overwrite.old_tensor;
  }
  for (const InPlacePair& pair : graph_.in_place(op)) {
    if (pair.output != output || !IsLastReader(pair.input)) continue;
    const bool is_dead = kind == StepKind::kCompute
                             ? graph_.release(pair.input) == op
                             : tensor(pair.input).is_released;
    if (is_dead) return pair.input;
  }
  return kNone;
}

// The cheapest input that is needed later, but can be recomputed then.
TensorIdx Simulator::FindConsumableInput(OpIdx op, TensorIdx output) {
  if (copies_on_write_ || !lays_out_like_coop_ ||
      !options_.coop.recomputable_in_place) {
    return kNone;
  }
  TensorIdx cheapest = kNone;
  for (const InPlacePair& pair : graph_.in_place(op)) {
    if (pair.output != output || !IsLastReader(pair.input)) continue;
    if (!graph_.is_evictable(pair.input)) continue;
    if (cheapest == kNone ||
        policy_->Cost(pair.input) < policy_->Cost(cheapest)) {
      cheapest = pair.input;
    }
  }
  return cheapest;
}

// In the work at hand only the operation at hand still reads `input`, and no
// output has taken it over yet.
bool Simulator::IsLastReader(TensorIdx input) const {
  return tensor(input).is_resident && tensor(input).pins == 1;
}

void Simulator::Place(TensorIdx output, PieceIdx piece) {
  TensorState& placed = tensor(output);
  placed.piece = piece;
  placed.is_resident = true;
}

void Simulator::TakeOver(Made& made, TensorIdx input, StepKind drop_kind) {
  made.taken_over = input;
  made.drop_kind = drop_kind;
  const PieceIdx piece = std::exchange(tensor(input).piece, kNone);
  tensor(input).is_resident = false;
  state_.pool.HandOver(piece, made.tensor);
  Place(made.tensor, piece);
}

void Simulator::Drop(TensorIdx t, StepKind kind) {
  const PieceIdx piece = std::exchange(tensor(t).piece, kNone);
  if (piece != kNone) state_.pool.Release(piece);
  tensor(t).is_resident = false;
  if (graph_.has_way_back(t)) policy_->OnEvict(t);
  RecordDrop(t, kind);
}

// What can never be evicted goes left as well, out of the way of windows.
Side Simulator::SideOf(OpIdx op, bool is_evictable) const {
  if (!lays_out_like_coop_ || !options_.coop.partition || !is_evictable) {
    return Side::kLeft;
  }
  const bool is_cheap = graph_.seconds(op) == 0 ||
                        CostDensity(graph_, op) < density_threshold_;
  return is_cheap ? Side::kRight : Side::kLeft;
}

void Simulator::Record(StepKind kind, OpIdx op) {
  for (const Made& made : made_) {
    if (made.taken_over != kNone) RecordDrop(made.taken_over, made.drop_kind);
  }
  const int64_t step = std::ssize(schedule_.steps);
  schedule_.steps.push_back({kind, op});
  const auto offset_of = [&](PieceIdx piece) {
    return piece == kNone ? Offset{0} : state_.pool.piece(piece).offset;
  };
  for (const Made& made : made_) {
    schedule_.placements.push_back({step, made.tensor,
                                    offset_of(tensor(made.tensor).piece),
                                    made.taken_over});
  }
  if (workspace_ != kNone) {
    schedule_.workspaces.push_back({step, offset_of(workspace_)});
  }
  RecordLiveBytes();
  for (const Made& made : made_) policy_->OnMake(made.tensor);
  for (const Made& made : made_) {
    if (made.taken_over != kNone && graph_.has_way_back(made.taken_over)) {
      policy_->OnEvict(made.taken_over);
    }
  }
}

void Simulator::RecordDrop(TensorIdx t, StepKind kind) {
  schedule_.steps.push_back({kind, t});
  if (kind == StepKind::kEvict) ++schedule_.statistics.forced_evictions;
  if (kind == StepKind::kFree && graph_.is_evictable(t)) {
    ++schedule_.statistics.eager_evictions;
  }
}

// While an operation runs: what made room for it is gone by then.
void Simulator::RecordLiveBytes() {
  const Pool& pool = state_.pool;
  schedule_.statistics.max_live_bytes =
      std::max(schedule_.statistics.max_live_bytes,
               pool.capacity() - pool.free_bytes());
}

// A tensor counts as accessed when the operation that uses it starts.
void Simulator::Advance(StepKind kind, OpIdx op) {
  for (const TensorIdx t : graph_.inputs(op)) {
    tensor(t).last_access = state_.clock;
  }
  for (const Made& made : made_) {
    tensor(made.tensor).last_access = state_.clock;
  }
  const Seconds seconds = graph_.seconds(op);
  state_.clock += seconds;
  if (kind == StepKind::kCompute) {
    schedule_.statistics.compute_seconds += seconds;
  } else {
    schedule_.statistics.recompute_seconds += seconds;
    ++schedule_.statistics.recomputations;
  }
}

void Simulator::Unpin(TensorIdx t) {
  TensorState& unpinned = tensor(t);
  if (--unpinned.pins > 0) return;
  if (unpinned.is_released && unpinned.is_resident) Drop(t, StepKind::kFree);
}

void Simulator::Destroy(TensorIdx overwritten) {
  tensor(overwritten).is_gone = true;
  if (tensor(overwritten).piece != kNone) {
    Drop(overwritten, StepKind::kFree);  // Copy on write.
  }
  tensor(overwritten).is_resident = false;
}

void Simulator::ReleaseAfter(Position position) {
  for (const TensorIdx t : graph_.released_after(position)) {
    tensor(t).is_released = true;
    if (tensor(t).is_resident) Drop(t, StepKind::kFree);
  }
}

bool Simulator::FailForMemory(Bytes requested_bytes) {
  const Pool& pool = state_.pool;
  failure_ = {.reason = PlanFailure::Reason::kOutOfMemory,
              .op = op_,
              .requested_by = requested_by_,
              .requested_bytes =
                  RoundUp(requested_bytes, options_.common.alignment),
              .free_bytes = pool.free_bytes(),
              .largest_free_bytes = pool.largest_free_bytes(),
              .pinned_bytes = 0,
              .capacity = schedule_.capacity};
  for (PieceIdx i = pool.first(); i != kNone; i = pool.piece(i).next) {
    const Piece& piece = pool.piece(i);
    if (!piece.is_free && !state_.IsEvictableNow(piece)) {
      failure_.pinned_bytes += piece.bytes;
    }
  }
  return false;
}

void Simulator::Summarise() {
  Statistics& statistics = schedule_.statistics;
  statistics.pieces_examined = policy_->pieces_examined();
  statistics.peak_bytes = state_.pool.peak_bytes();
  statistics.density_threshold = density_threshold_;
  SummariseEvents(schedule_.events, schedule_.capacity, statistics);
}

}  // namespace

PlanResult Simulate(const Graph& graph, Bytes capacity,
                    const OnlineOptions& options) {
  return Simulator(graph, capacity, options).Run();
}

}  // namespace coop
