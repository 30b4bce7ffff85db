#include "core/schedule/block_map.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <string>

namespace coop {
namespace {

std::string NameOf(TensorIdx t) {
  return t == kNone ? "a workspace" : "tensor " + std::to_string(t);
}

// No Offset lies beyond it: corrupt schedules have offsets of any size.
Offset EndOf(Offset offset, Bytes bytes) {
  constexpr Offset kLast = std::numeric_limits<Offset>::max();
  return offset > kLast - bytes ? kLast : offset + bytes;
}

}  // namespace

void BlockMap::Add(TensorIdx t, Offset offset, Bytes bytes) {
  if (offset % alignment_ != 0) {
    log_.Report(Violation::kAlignment, NameOf(t), " at ", offset,
                " is not aligned to ", alignment_);
  }
  if (offset < 0 || offset > capacity_ - bytes) {
    log_.Report(Violation::kOutOfRange, NameOf(t), " at [", offset, ", ",
                EndOf(offset, bytes), ") is outside the pool of ", capacity_);
    return;
  }
  peak_ = std::max(peak_, EndOf(offset, Rounded(bytes)));
  const Offset end = offset + bytes;
  const auto after = blocks_.lower_bound(offset);
  if (after != blocks_.end() && after->first < end) {
    ReportOverlap(t, offset, end, after->first, after->second);
  }
  if (after != blocks_.begin()) {
    const auto before = std::prev(after);
    if (before->second.end > offset) {
      ReportOverlap(t, offset, end, before->first, before->second);
    }
  }
  blocks_.insert_or_assign(offset, Block{end, t});
}

void BlockMap::Remove(TensorIdx t, Offset offset) {
  const auto block = blocks_.find(offset);
  if (block != blocks_.end() && block->second.tensor == t) {
    blocks_.erase(block);
  }
}

void BlockMap::ReportOverlap(TensorIdx t, Offset begin, Offset end,
                             Offset other_begin, const Block& other) {
  log_.Report(Violation::kOverlap, NameOf(t), " at [", begin, ", ", end,
              ") overlaps ", NameOf(other.tensor), " at [", other_begin, ", ",
              other.end, ")");
}

}  // namespace coop
