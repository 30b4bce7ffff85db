// Room: the bytes that a rollout leaves below its limit, kept up to date while
// several changes are chosen at once.
#ifndef COOP_CORE_SEARCH_ROOM_H_
#define COOP_CORE_SEARCH_ROOM_H_

#include <algorithm>
#include <limits>
#include <span>
#include <vector>

#include "core/base/types.h"
#include "core/search/rollout.h"

namespace coop {

// The least of each stretch of executions, not that of every execution: long
// programs have long gaps. All ranges (from, to) exclude both ends.
class Room {
 public:
  // `room` is by execution; negative where there are too many bytes.
  void Index(std::span<const Bytes> room) {
    const ExecIdx end = std::ssize(room);
    stretch_ = 1 + end / kStretches;
    if (stretch_ == 1) {
      least_.assign(room.begin(), room.end());
      least_.push_back(std::numeric_limits<Bytes>::max());
      return;
    }
    least_.assign(At(end / stretch_ + 1), std::numeric_limits<Bytes>::max());
    for (ExecIdx e = 0; e < end; ++e) {
      Bytes& least = least_[At(e / stretch_)];
      least = std::min(least, room[At(e)]);
    }
  }

  // Gives `bytes` back where there are too many; false if there are nowhere.
  bool Relieve(ExecIdx from, ExecIdx to, Bytes bytes) {
    bool has_relieved = false;
    for (ExecIdx i = First(from); i <= Last(to); ++i) {
      if (least_[At(i)] >= 0) continue;
      least_[At(i)] += bytes;
      has_relieved = true;
    }
    return has_relieved;
  }

  // Takes `bytes`; false, and nothing is taken, where they do not fit.
  bool Take(ExecIdx from, ExecIdx to, Bytes bytes) {
    if (to <= from + 1) return true;
    for (ExecIdx i = First(from); i <= Last(to); ++i) {
      if (least_[At(i)] < bytes) return false;
    }
    for (ExecIdx i = First(from); i <= Last(to); ++i) least_[At(i)] -= bytes;
    return true;
  }

 private:
  static constexpr int64_t kStretches = 1024;

  ExecIdx First(ExecIdx from) const { return (from + 1) / stretch_; }
  ExecIdx Last(ExecIdx to) const { return (to - 1) / stretch_; }

  std::vector<Bytes> least_;  // By stretch.
  ExecIdx stretch_ = 1;
};

}  // namespace coop

#endif  // COOP_CORE_SEARCH_ROOM_H_
