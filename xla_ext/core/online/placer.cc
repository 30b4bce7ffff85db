#include "core/online/placer.h"

#include <chrono>
#include <utility>

#include "core/online/density.h"

namespace coop {

Placer::Placer(const OnlineOptions& options, State& state, Policy& policy,
               Recorder& recorder)
    : graph_(state.graph),
      state_(state),
      policy_(policy),
      recorder_(recorder),
      partitions_(LaysOutLikeCoop(options) && options.coop.partition),
      copies_on_write_(CopiesOnWrite(options)),
      consumes_inputs_(!copies_on_write_ && LaysOutLikeCoop(options) &&
                       options.coop.recomputable_in_place) {
  if (partitions_) {
    density_threshold_ = options.coop.density_threshold
                             ? *options.coop.density_threshold
                             : DensityThreshold(graph_);
  }
}

bool Placer::PlaceInput(TensorIdx t) {
  if (graph_.bytes(t) == 0) return true;
  const auto piece = state_.pool.Allocate(graph_.bytes(t), Side::kLeft, t);
  if (!piece) {
    missing_bytes_ = graph_.bytes(t);
    return false;
  }
  tensor(t).piece = *piece;
  return true;
}

bool Placer::PlaceRun(StepKind kind, OpIdx op) {
  return PlaceOutputs(kind, op) && PlaceWorkspace(op);
}

// Fills made_, each tensor in its block.
bool Placer::PlaceOutputs(StepKind kind, OpIdx op) {
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
      if (room == Room::kNowhere) return false;
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

bool Placer::PlaceWorkspace(OpIdx op) {
  workspace_ = kNone;
  const Bytes bytes = graph_.workspace_bytes(op);
  if (bytes == 0) return true;
  if (!state_.pool.Fits(bytes) && MakeRoom(bytes, kNone) == Room::kNowhere) {
    return false;
  }
  workspace_ = *state_.pool.Allocate(bytes, SideOf(op, true), kNone);
  return true;
}

// Evicts until `bytes` fit, or says that the output had better overwrite
// `consumable` (kNone: there is no such input).
Placer::Room Placer::MakeRoom(Bytes bytes, TensorIdx consumable) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  Event event{.requested_bytes = RoundUp(bytes, state_.pool.alignment())};
  Room room = Room::kMade;
  while (!state_.pool.Fits(bytes)) {
    const auto eviction = policy_.Choose(event.requested_bytes);
    if (consumable != kNone &&
        (!eviction || policy_.Cost(consumable) < eviction->cost)) {
      room = Room::kByTakingOver;
      ++event.evictions;
      event.free_bytes += event.requested_bytes;
      break;
    }
    if (!eviction) {
      missing_bytes_ = bytes;
      return Room::kNowhere;
    }
    for (const TensorIdx t : eviction->victims) Drop(t, StepKind::kEvict);
    event.evictions += std::ssize(eviction->victims);
  }
  event.free_bytes += state_.pool.free_bytes();
  event.nanoseconds = std::chrono::duration_cast<std::chrono::nanoseconds>(
                          Clock::now() - start)
                          .count();
  recorder_.RecordEvent(event);
  return room;
}

// An input whose block `output` takes over because nothing needs it any more.
TensorIdx Placer::FindDeadInput(StepKind kind, OpIdx op,
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
TensorIdx Placer::FindConsumableInput(OpIdx op, TensorIdx output) {
  if (!consumes_inputs_) return kNone;
  TensorIdx cheapest = kNone;
  for (const InPlacePair& pair : graph_.in_place(op)) {
    if (pair.output != output || !IsLastReader(pair.input)) continue;
    if (!graph_.is_evictable(pair.input)) continue;
    if (cheapest == kNone ||
        policy_.Cost(pair.input) < policy_.Cost(cheapest)) {
      cheapest = pair.input;
    }
  }
  return cheapest;
}

// In the work at hand only the operation at hand still reads `input`, and no
// output has taken it over yet.
bool Placer::IsLastReader(TensorIdx input) const {
  return tensor(input).is_resident && tensor(input).pins == 1;
}

void Placer::Place(TensorIdx output, PieceIdx piece) {
  TensorState& placed = tensor(output);
  placed.piece = piece;
  placed.is_resident = true;
}

void Placer::TakeOver(Made& made, TensorIdx input, StepKind drop_kind) {
  made.taken_over = input;
  made.drop_kind = drop_kind;
  const PieceIdx piece = std::exchange(tensor(input).piece, kNone);
  tensor(input).is_resident = false;
  state_.pool.HandOver(piece, made.tensor);
  Place(made.tensor, piece);
}

void Placer::Drop(TensorIdx t, StepKind kind) {
  const PieceIdx piece = std::exchange(tensor(t).piece, kNone);
  if (piece != kNone) state_.pool.Release(piece);
  tensor(t).is_resident = false;
  if (graph_.has_way_back(t)) policy_.OnEvict(t);
  recorder_.RecordDrop(t, kind);
}

// Tensors that can never be evicted go left as well, out of the way of windows.
Side Placer::SideOf(OpIdx op, bool is_evictable) const {
  if (!partitions_ || !is_evictable) return Side::kLeft;
  const bool is_cheap = graph_.seconds(op) == 0 ||
                        CostDensity(graph_, op) < density_threshold_;
  return is_cheap ? Side::kRight : Side::kLeft;
}

}  // namespace coop
