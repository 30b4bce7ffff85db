#include "core/online/pool.h"

#include <algorithm>
#include <sstream>

namespace coop {

Pool::Pool(Bytes capacity, Bytes alignment)
    : capacity_(capacity / alignment * alignment),
      alignment_(alignment),
      free_bytes_(capacity_) {
  if (capacity_ == 0) return;
  first_ = NewPiece();
  pieces_[At(first_)].bytes = capacity_;
  free_.insert(KeyOf(first_));
}

bool Pool::Fits(Bytes bytes) const {
  return RoundUp(bytes, alignment_) <= largest_free_bytes();
}

std::optional<PieceIdx> Pool::Allocate(Bytes bytes, Side side, int64_t owner) {
  const Bytes rounded = RoundUp(bytes, alignment_);
  const auto best = free_.lower_bound({rounded, 0, kNone});
  if (best == free_.end()) return std::nullopt;
  PieceIdx block = best->piece;
  free_.erase(best);
  const Bytes rest = piece(block).bytes - rounded;
  if (rest > 0) {
    // The piece keeps its low end; the new one behind it gets the high end.
    const PieceIdx high = NewPiece();
    InsertAfter(block, high);
    const PieceIdx low = block;
    pieces_[At(low)].bytes = side == Side::kLeft ? rounded : rest;
    pieces_[At(high)].bytes = side == Side::kLeft ? rest : rounded;
    pieces_[At(high)].offset = piece(low).offset + piece(low).bytes;
    block = side == Side::kLeft ? low : high;
    free_.insert(KeyOf(side == Side::kLeft ? high : low));
  }
  Piece& used = pieces_[At(block)];
  used.is_free = false;
  used.owner = owner;
  free_bytes_ -= rounded;
  peak_bytes_ = std::max(peak_bytes_, used.offset + used.bytes);
  return block;
}

void Pool::Release(PieceIdx released) {
  Piece& block = pieces_[At(released)];
  block.is_free = true;
  block.owner = kNone;
  free_bytes_ += block.bytes;
  const PieceIdx left = block.previous;
  const PieceIdx right = block.next;
  if (right != kNone && piece(right).is_free) {
    free_.erase(KeyOf(right));
    MergeWithNext(released);
  }
  if (left != kNone && piece(left).is_free) {
    free_.erase(KeyOf(left));
    MergeWithNext(left);
    released = left;
  }
  free_.insert(KeyOf(released));
}

void Pool::HandOver(PieceIdx block, int64_t owner) {
  pieces_[At(block)].owner = owner;
}

PieceIdx Pool::NewPiece() {
  if (!unused_.empty()) {
    const PieceIdx i = unused_.back();
    unused_.pop_back();
    pieces_[At(i)] = Piece{};
    return i;
  }
  pieces_.emplace_back();
  return std::ssize(pieces_) - 1;
}

void Pool::InsertAfter(PieceIdx left, PieceIdx inserted) {
  const PieceIdx right = piece(left).next;
  pieces_[At(left)].next = inserted;
  pieces_[At(inserted)].previous = left;
  pieces_[At(inserted)].next = right;
  if (right != kNone) pieces_[At(right)].previous = inserted;
}

void Pool::MergeWithNext(PieceIdx left) {
  const PieceIdx gone = piece(left).next;
  const PieceIdx right = piece(gone).next;
  pieces_[At(left)].bytes += piece(gone).bytes;
  pieces_[At(left)].next = right;
  if (right != kNone) pieces_[At(right)].previous = left;
  unused_.push_back(gone);
}

std::optional<std::string> Pool::CheckInvariants() const {
  std::ostringstream wrong;
  Offset expected = 0;
  Bytes free_bytes = 0;
  size_t num_free = 0;
  PieceIdx previous = kNone;
  for (PieceIdx i = first_; i != kNone; previous = i, i = piece(i).next) {
    const Piece& p = piece(i);
    if (p.offset != expected) {
      wrong << "gap or overlap: piece at " << p.offset << ", expected at "
            << expected << "; ";
    }
    if (p.bytes <= 0) wrong << "piece at " << p.offset << " is empty; ";
    if (p.offset % alignment_ != 0 || p.bytes % alignment_ != 0) {
      wrong << "piece at " << p.offset << " is not aligned; ";
    }
    if (p.previous != previous) {
      wrong << "piece at " << p.offset << " has a wrong left neighbour; ";
    }
    if (p.is_free) {
      if (previous != kNone && piece(previous).is_free) {
        wrong << "two free pieces meet at " << p.offset << "; ";
      }
      if (!free_.contains(KeyOf(i))) {
        wrong << "free piece at " << p.offset << " is not listed; ";
      }
      free_bytes += p.bytes;
      ++num_free;
    }
    expected = p.offset + p.bytes;
  }
  if (expected != capacity_) {
    wrong << "pieces end at " << expected << ", not at " << capacity_ << "; ";
  }
  if (free_bytes != free_bytes_) {
    wrong << "counted " << free_bytes << " free bytes, booked " << free_bytes_
          << "; ";
  }
  if (num_free != free_.size()) {
    wrong << "counted " << num_free << " free pieces, listed " << free_.size()
          << "; ";
  }
  const std::string text = wrong.str();
  if (text.empty()) return std::nullopt;
  return text;
}

}  // namespace coop
