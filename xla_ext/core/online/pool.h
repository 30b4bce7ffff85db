// One contiguous address range, cut into pieces.
#ifndef COOP_CORE_ONLINE_POOL_H_
#define COOP_CORE_ONLINE_POOL_H_

#include <compare>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/base/types.h"

namespace coop {

// Stable while the piece is in use: merging never renames a used piece.
using PieceIdx = int64_t;

struct Piece {
  Offset offset = 0;
  Bytes bytes = 0;
  PieceIdx previous = kNone;  // In address order; kNone at the ends.
  PieceIdx next = kNone;
  int64_t owner = kNone;      // The caller's tag of a used piece.
  bool is_free = true;
};

// The pieces cover [0, capacity) without gaps, and no two free ones touch:
//
//   0                                                      capacity
//   | tensor 3 |  free  | tensor 7 | tensor 1 |    free    |
//
// Best fit first: a request is rounded up to the alignment and cut from the
// smallest free piece that holds it (the lowest one of several), at the side
// asked for. Allocation and release take O(log pieces).
class Pool {
 public:
  // Capacity is rounded down to a multiple of `alignment`, a power of two.
  Pool(Bytes capacity, Bytes alignment);

  [[nodiscard]] bool Fits(Bytes bytes) const;
  // nullopt if no free piece is large enough. `bytes` must be positive.
  [[nodiscard]] std::optional<PieceIdx> Allocate(Bytes bytes, Side side,
                                                 int64_t owner);
  void Release(PieceIdx piece);
  // The block stays where it is and belongs to `owner` from now on.
  void HandOver(PieceIdx piece, int64_t owner);

  [[nodiscard]] Bytes capacity() const { return capacity_; }
  [[nodiscard]] Bytes alignment() const { return alignment_; }
  [[nodiscard]] Bytes free_bytes() const { return free_bytes_; }
  [[nodiscard]] Bytes largest_free_bytes() const {
    return free_.empty() ? 0 : free_.rbegin()->bytes;
  }
  // The highest end address of any block so far.
  [[nodiscard]] Bytes peak_bytes() const { return peak_bytes_; }

  // Walk with piece(i).next; kNone if the capacity is 0.
  [[nodiscard]] PieceIdx first() const { return first_; }
  [[nodiscard]] const Piece& piece(PieceIdx i) const { return pieces_[At(i)]; }

  // The first violated invariant, or nullopt. O(pieces), for tests.
  [[nodiscard]] std::optional<std::string> CheckInvariants() const;

 private:
  struct FreeKey {
    Bytes bytes;
    Offset offset;
    PieceIdx piece;
    auto operator<=>(const FreeKey&) const = default;
  };

  [[nodiscard]] FreeKey KeyOf(PieceIdx i) const {
    return {piece(i).bytes, piece(i).offset, i};
  }
  PieceIdx NewPiece();
  void InsertAfter(PieceIdx left, PieceIdx inserted);
  void MergeWithNext(PieceIdx left);

  Bytes capacity_;
  Bytes alignment_;
  Bytes free_bytes_;
  Bytes peak_bytes_ = 0;
  PieceIdx first_ = kNone;
  std::vector<Piece> pieces_;
  std::vector<PieceIdx> unused_;  // Slots of pieces_ that hold no piece.
  std::set<FreeKey> free_;
};

}  // namespace coop

#endif  // COOP_CORE_ONLINE_POOL_H_
