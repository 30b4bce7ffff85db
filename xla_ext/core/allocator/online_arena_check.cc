#include <string>
#include <vector>

#include "core/allocator/online_arena.h"

namespace coop {

std::optional<std::string> OnlineArena::CheckInvariants() const {
  if (auto wrong = pool_.CheckInvariants()) return wrong;
  int64_t num_used = 0;
  for (PieceIdx i = pool_.first(); i != kNone; i = pool_.piece(i).next) {
    const Piece& piece = pool_.piece(i);
    if (piece.is_free) continue;
    ++num_used;
    if (!tensors_[At(piece.owner)] || Get(piece.owner).piece != i) {
      return "the block at " + std::to_string(piece.offset) +
             " does not belong to its owner";
    }
  }
  std::vector<int64_t> dependents(tensors_.size(), 0);
  int64_t num_resident = 0;
  for (Handle handle = 0; handle < std::ssize(tensors_); ++handle) {
    if (!tensors_[At(handle)]) continue;
    const Tensor& tensor = Get(handle);
    const std::string name = "tensor " + std::to_string(handle);
    for (const Handle input : tensor.inputs) {
      if (!tensors_[At(input)]) return name + " has lost an input";
      ++dependents[At(input)];
    }
    num_resident += tensor.piece != kNone;
    if (tensor.pins < 0) return name + " is unpinned too often";
    if (tensor.pins > 0 && tensor.piece == kNone) {
      return name + " is pinned and not resident";
    }
    const bool is_evicted = tensor.evicted_as != kNone;
    if (is_evicted && (tensor.piece != kNone || !tensor.recompute)) {
      return name + " is evicted and should not be";
    }
    if (!is_evicted && tensor.piece == kNone && !tensor.is_overwritten) {
      return name + " is lost";
    }
  }
  if (num_resident != num_used) return "a block has two owners, or none";
  for (Handle handle = 0; handle < std::ssize(tensors_); ++handle) {
    if (!tensors_[At(handle)]) continue;
    if (Get(handle).dependents != dependents[At(handle)]) {
      return "tensor " + std::to_string(handle) + " miscounts its dependents";
    }
    if (Get(handle).is_released && dependents[At(handle)] == 0) {
      return "tensor " + std::to_string(handle) + " is released and kept";
    }
  }
  return std::nullopt;
}

}  // namespace coop
