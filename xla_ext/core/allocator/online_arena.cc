#include "core/allocator/online_arena.h"

#include <algorithm>
#include <limits>
#include <new>
#include <unordered_set>
#include <utility>

namespace coop {

OnlineArena::OnlineArena(Bytes capacity, const Options& options)
    : pool_(capacity, options.alignment),
      cheap_density_(options.cheap_density),
      memory_(static_cast<std::byte*>(::operator new(
                  At(std::max<Bytes>(pool_.capacity(), 1)),
                  std::align_val_t{At(options.alignment)})),
              FreeMemory{At(options.alignment)}) {}

OnlineArena::Tensor& OnlineArena::Get(Handle tensor) {
  return *tensors_[At(tensor)];
}

const OnlineArena::Tensor& OnlineArena::Get(Handle tensor) const {
  return *tensors_[At(tensor)];
}

OnlineArena::Tensor& OnlineArena::InUse(const char* method, Handle tensor) {
  if (is_busy_) {
    throw std::invalid_argument(
        std::string(method) +
        " must not be called while a tensor is recomputed: use the memory of "
        "the inputs that the recomputation was given");
  }
  if (tensor < 0 || tensor >= std::ssize(tensors_) || !tensors_[At(tensor)] ||
      Get(tensor).is_released) {
    throw std::invalid_argument(std::string(method) + ": tensor " +
                                std::to_string(tensor) +
                                " is not in use; it was released, or never "
                                "allocated here");
  }
  return Get(tensor);
}

void OnlineArena::CheckReadable(const char* method, Handle tensor) {
  if (!InUse(method, tensor).is_overwritten) return;
  throw std::invalid_argument(std::string(method) + ": tensor " +
                              std::to_string(tensor) +
                              " was overwritten in place and can't be "
                              "recomputed; all it can be is released");
}

Memory OnlineArena::MemoryOf(const Tensor& tensor) {
  return {memory_.get() + pool_.piece(tensor.piece).offset, At(tensor.bytes)};
}

Side OnlineArena::SideOf(const Tensor& tensor) const {
  // Tensors that can never be evicted go left as well, out of the way of windows.
  if (!tensor.recompute) return Side::kLeft;
  const double seconds_if_dear =
      cheap_density_ * static_cast<double>(tensor.bytes);
  const bool is_cheap = tensor.seconds == 0 || tensor.seconds < seconds_if_dear;
  return is_cheap ? Side::kRight : Side::kLeft;
}

double OnlineArena::CostOf(const Tensor& tensor) {
  Seconds seconds = tensor.seconds;
  for (const Handle input : tensor.inputs) {
    const Tensor& made_from = Get(input);
    if (made_from.evicted_as == kNone) continue;
    seconds +=
        std::max(components_.Sum(made_from.evicted_as), made_from.seconds);
  }
  if (seconds == 0) return 0;
  const Seconds staleness = clock_ - tensor.last_access;
  if (staleness <= 0) return std::numeric_limits<double>::infinity();
  return seconds / staleness;
}

PieceIdx OnlineArena::TakeRoom(Handle owner, const Tensor& tensor) {
  const auto exhausted = [&](Bytes held) {
    return ArenaExhausted(
        "an arena of " + std::to_string(pool_.capacity()) +
        " bytes has no room for " + std::to_string(tensor.bytes) + ": " +
        std::to_string(held) +
        " bytes are pinned or can't be recomputed, and what is left is too "
        "little or not in one piece. Unpin or release tensors, or make the "
        "arena larger");
  };
  if (tensor.bytes > pool_.capacity()) throw exhausted(0);
  const Side side = SideOf(tensor);
  if (const auto piece = pool_.Allocate(tensor.bytes, side, owner)) {
    return *piece;
  }
  window_pieces_.clear();
  owners_.clear();
  Bytes held = 0;
  for (PieceIdx i = pool_.first(); i != kNone; i = pool_.piece(i).next) {
    const Piece& piece = pool_.piece(i);
    const bool is_candidate = !piece.is_free && IsEvictable(Get(piece.owner));
    const bool is_barrier = !piece.is_free && !is_candidate;
    held += is_barrier ? piece.bytes : 0;
    window_pieces_.emplace_back(
        piece.bytes, is_candidate ? CostOf(Get(piece.owner)) : 0, is_barrier);
    owners_.push_back(piece.is_free ? kNone : piece.owner);
  }
  const auto window =
      search_.Find(window_pieces_, RoundUp(tensor.bytes, pool_.alignment()));
  if (!window) throw exhausted(held);
  for (size_t i = window->begin; i < window->end; ++i) {
    if (owners_[i] == kNone) continue;
    EvictNow(owners_[i]);
    ++counts_.evictions;
  }
  return *pool_.Allocate(tensor.bytes, side, owner);
}

void OnlineArena::EvictNow(Handle handle) {
  pool_.Release(Get(handle).piece);
  CountAsEvicted(Get(handle));
}

void OnlineArena::CountAsEvicted(Tensor& tensor) {
  tensor.piece = kNone;
  tensor.evicted_as = components_.Add(tensor.seconds);
  for (const Handle input : tensor.inputs) {
    if (Get(input).evicted_as != kNone) {
      components_.Merge(Get(input).evicted_as, tensor.evicted_as);
    }
  }
}

void OnlineArena::Unhold(Handle handle) {
  Tensor& tensor = Get(handle);
  --tensor.pins;
  // A tensor that only came back for others goes again.
  if (tensor.is_released && tensor.pins == 0 && IsEvictable(tensor)) {
    EvictNow(handle);
  }
}

// A tensor counts as accessed when what uses it starts.
void OnlineArena::Access(std::span<const Handle> tensors) {
  for (const Handle handle : tensors) Get(handle).last_access = clock_;
}

// All inputs are resident and pinned.
void OnlineArena::RunAgain(Handle handle) {
  const PieceIdx piece = TakeRoom(handle, Get(handle));
  Tensor& tensor = Get(handle);
  tensor.piece = piece;
  std::vector<Memory> inputs;
  inputs.reserve(tensor.inputs.size());
  for (const Handle input : tensor.inputs) {
    inputs.push_back(MemoryOf(Get(input)));
  }
  is_busy_ = true;
  try {
    tensor.recompute(MemoryOf(tensor), inputs);
  } catch (...) {
    is_busy_ = false;
    pool_.Release(piece);
    tensor.piece = kNone;
    throw;
  }
  is_busy_ = false;
  components_.Leave(tensor.evicted_as, tensor.seconds);
  tensor.evicted_as = kNone;
  Access(tensor.inputs);
  tensor.last_access = clock_;
  clock_ += tensor.seconds;
  ++counts_.recomputations;
  counts_.recomputed_seconds += tensor.seconds;
}

// The tensors to recompute for `wanted`, each behind those it is made from: depth
// first, as the planner does it, with a stack of its own because chains are long.
std::vector<Handle> OnlineArena::Missing(std::span<const Handle> wanted) const {
  std::vector<Handle> order;
  std::unordered_set<Handle> seen;
  std::vector<std::pair<Handle, size_t>> stack;
  const auto visit = [&](Handle handle) {
    if (Get(handle).piece == kNone && seen.insert(handle).second) {
      stack.emplace_back(handle, 0);
    }
  };
  for (const Handle handle : wanted) {
    visit(handle);
    while (!stack.empty()) {
      auto& [top, next_input] = stack.back();
      const auto& inputs = Get(top).inputs;
      if (next_input < inputs.size()) {
        visit(inputs[next_input++]);
      } else {
        order.push_back(top);
        stack.pop_back();
      }
    }
  }
  return order;
}

void OnlineArena::MakeResident(std::span<const Handle> wanted) {
  const std::vector<Handle> missing = Missing(wanted);
  // One pin per read, also on what is still to be made: it holds from then.
  for (const Handle handle : missing) {
    for (const Handle input : Get(handle).inputs) ++Get(input).pins;
  }
  for (const Handle handle : wanted) ++Get(handle).pins;
  size_t num_done = 0;
  try {
    for (; num_done < missing.size(); ++num_done) {
      RunAgain(missing[num_done]);
      for (const Handle input : Get(missing[num_done]).inputs) Unhold(input);
    }
  } catch (...) {
    for (; num_done < missing.size(); ++num_done) {
      for (const Handle input : Get(missing[num_done]).inputs) Unhold(input);
    }
    for (const Handle handle : wanted) Unhold(handle);
    throw;
  }
}

Handle OnlineArena::Allocate(Request request) {
  if (request.bytes <= 0) {
    throw std::invalid_argument("allocate: `bytes` must be positive, got " +
                                std::to_string(request.bytes));
  }
  if (!(request.seconds >= 0 && request.seconds <= kMostSeconds)) {
    throw std::invalid_argument("allocate: `seconds` must be in [0, 1e18], got " +
                                std::to_string(request.seconds));
  }
  if (is_busy_) {
    throw std::invalid_argument(
        "allocate must not be called while a tensor is recomputed");
  }
  for (const Handle input : request.inputs) {
    CheckReadable("allocate: an input", input);
  }
  if (request.take_over != kNone) {
    const Tensor& old = InUse("allocate: `take_over`", request.take_over);
    if (!old.recompute && (old.dependents > 0 || request.recompute)) {
      throw std::invalid_argument(
          "allocate: `take_over` must be a tensor that can be recomputed where "
          "others are recomputed from it, got tensor " +
          std::to_string(request.take_over));
    }
    if (std::ranges::count(request.inputs, request.take_over) != 1 ||
        request.bytes > pool_.capacity() ||
        RoundUp(old.bytes, pool_.alignment()) !=
            RoundUp(request.bytes, pool_.alignment()) ||
        old.pins > 0) {
      throw std::invalid_argument(
          "allocate: `take_over` must be one of the inputs, of the same size "
          "and not pinned, got tensor " +
          std::to_string(request.take_over) + " of " +
          std::to_string(old.bytes) + " bytes for " +
          std::to_string(request.bytes));
    }
  }
  MakeResident(request.inputs);
  const Handle handle = std::ssize(tensors_);
  tensors_.emplace_back();
  try {
    Tensor made{.bytes = request.bytes,
                .seconds = request.seconds,
                .inputs = request.recompute ? request.inputs
                                            : std::vector<Handle>(),
                .recompute = std::move(request.recompute)};
    if (request.take_over == kNone) {
      made.piece = TakeRoom(handle, made);
    } else {
      // Its value is gone, or recomputed when it is touched again.
      const Handle old_handle = request.take_over;
      Tensor& old = Get(old_handle);
      made.piece = old.piece;
      pool_.HandOver(old.piece, handle);
      old.piece = kNone;
      old.is_overwritten = !old.recompute;
      if (old.recompute) CountAsEvicted(old);
    }
    Access(request.inputs);
    made.last_access = clock_;
    clock_ += made.seconds;
    tensors_[At(handle)] = std::move(made);
  } catch (...) {
    for (const Handle input : request.inputs) Unhold(input);
    tensors_.pop_back();
    throw;
  }
  for (const Handle input : request.inputs) Unhold(input);
  for (const Handle input : Get(handle).inputs) ++Get(input).dependents;
  return handle;
}

Memory OnlineArena::Touch(Handle handle) {
  const Memory memory = Pin(handle);
  --Get(handle).pins;
  return memory;
}

Memory OnlineArena::Pin(Handle handle) {
  CheckReadable("touch", handle);
  MakeResident({&handle, 1});
  Get(handle).last_access = clock_;
  return MemoryOf(Get(handle));
}

void OnlineArena::Unpin(Handle handle) {
  Tensor& tensor = InUse("unpin", handle);
  if (tensor.pins == 0) {
    throw std::invalid_argument("unpin: tensor " + std::to_string(handle) +
                                " is not pinned");
  }
  --tensor.pins;
}

void OnlineArena::Evict(Handle handle) {
  const Tensor& tensor = InUse("evict", handle);
  if (tensor.piece == kNone) return;
  if (!IsEvictable(tensor)) {
    throw std::invalid_argument(
        "evict: tensor " + std::to_string(handle) +
        (tensor.pins > 0 ? " is pinned" : " can't be recomputed"));
  }
  EvictNow(handle);
  ++counts_.evictions;
}

void OnlineArena::Release(Handle handle) {
  Tensor& tensor = InUse("release", handle);
  if (tensor.pins > 0) {
    throw std::invalid_argument("release: tensor " + std::to_string(handle) +
                                " is pinned; unpin it first");
  }
  tensor.is_released = true;
  Drop(handle);
}

void OnlineArena::Drop(Handle first) {
  std::vector<Handle> work{first};
  while (!work.empty()) {
    const Handle handle = work.back();
    work.pop_back();
    Tensor& tensor = Get(handle);
    if (!tensor.is_released) continue;
    if (tensor.dependents > 0) {
      // Its value may be needed: it stays, or it can be made again.
      if (IsEvictable(tensor)) EvictNow(handle);
      continue;
    }
    if (tensor.piece != kNone) pool_.Release(tensor.piece);
    if (tensor.evicted_as != kNone) {
      components_.Leave(tensor.evicted_as, tensor.seconds);
    }
    for (const Handle input : tensor.inputs) {
      if (--Get(input).dependents == 0) work.push_back(input);
    }
    tensors_[At(handle)].reset();
  }
}

bool OnlineArena::IsResident(Handle handle) const {
  return OffsetOf(handle) != kNone;
}

Offset OnlineArena::OffsetOf(Handle handle) const {
  if (handle < 0 || handle >= std::ssize(tensors_) || !tensors_[At(handle)]) {
    return kNone;
  }
  const PieceIdx piece = Get(handle).piece;
  return piece == kNone ? kNone : pool_.piece(piece).offset;
}

}  // namespace coop
