// The blocks in use in a pool by address, as a schedule under check places them.
#ifndef COOP_CORE_SCHEDULE_BLOCK_MAP_H_
#define COOP_CORE_SCHEDULE_BLOCK_MAP_H_

#include <map>

#include "core/base/types.h"
#include "core/schedule/violation.h"

namespace coop {

// Holds whatever it is given, also what overlaps or is misaligned; the log says
// what was wrong with it.
class BlockMap {
 public:
  // The log must outlive the map.
  BlockMap(Bytes capacity, Bytes alignment, ViolationLog& log)
      : capacity_(capacity), alignment_(alignment), log_(log) {}

  // A block of tensor `t`, kNone for a workspace. Reports kAlignment,
  // kOutOfRange and kOverlap.
  void Add(TensorIdx t, Offset offset, Bytes bytes);
  // Does nothing if `t` has no block there: that was reported before.
  void Remove(TensorIdx t, Offset offset);

  // Rounded up to the alignment.
  [[nodiscard]] Bytes Rounded(Bytes bytes) const {
    return (bytes + alignment_ - 1) / alignment_ * alignment_;
  }
  // The highest end address so far, sizes rounded up.
  [[nodiscard]] Bytes peak_bytes() const { return peak_; }

 private:
  struct Block {
    Offset end;
    TensorIdx tensor;
  };

  void ReportOverlap(TensorIdx t, Offset begin, Offset end, Offset other_begin,
                     const Block& other);

  const Bytes capacity_;
  const Bytes alignment_;
  ViolationLog& log_;
  std::map<Offset, Block> blocks_;  // By begin.
  Bytes peak_ = 0;
};

}  // namespace coop

#endif  // COOP_CORE_SCHEDULE_BLOCK_MAP_H_
