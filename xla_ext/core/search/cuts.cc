#include "core/search/cuts.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace coop {
namespace {

// A recomputation of more operations than this is nothing to consider.
constexpr size_t kLongestChain = 4096;
// The most places at which a value that is idle may be made again early.
constexpr int kMostSplitsInARow = 8;

// Rows 0 .. n - 1 of `keys`' counting sort: where each begins.
template <typename Count>
void CountInto(std::vector<int64_t>& ptr, int64_t num_rows, Count&& count) {
  ptr.assign(At(num_rows) + 1, 0);
  count([&](int64_t row) { ++ptr[At(row) + 1]; });
  for (size_t i = 1; i < ptr.size(); ++i) ptr[i] += ptr[i - 1];
}

}  // namespace

CutFinder::CutFinder(const Graph& graph, const GapTable& gaps,
                     const Rollout& rollout)
    : graph_(graph),
      gaps_(gaps),
      rollout_(rollout),
      visited_(At(graph.num_ops()), 0) {}

std::span<const Cut> CutFinder::Find(const Decisions& decisions,
                                     std::span<const Bytes> room,
                                     Seconds most_seconds) {
  cuts_.clear();
  most_seconds_ = most_seconds;
  has_too_dear_ = false;
  IndexExcess(room);
  if (num_above_.back() == 0) return cuts_;
  IndexVersions();
  IndexReads();
  if (gaps_.has_early_runs()) IndexFirstRuns();
  const auto versions = rollout_.versions();
  for (VersionIdx v = 0; v < std::ssize(versions); ++v) {
    ExecIdx from = versions[At(v)].made;
    for (int64_t i = reads_ptr_[At(v)]; i < reads_ptr_[At(v) + 1]; ++i) {
      const ExecIdx to = reads_[At(i)];
      const ExecIdx begin = std::exchange(from, to);
      // At most from where it was read on: mostly there is nothing to relieve.
      if (num_above_[At(to)] <= num_above_[At(std::max<ExecIdx>(begin, 0))]) continue;
      const bool frees_at_once = begin >= 0 && CouldBeTakenOver(v, begin);
      if (num_above_[At(to)] <= num_above_[At(begin + !frees_at_once)]) continue;
      Consider(decisions, v, begin, to, i, frees_at_once);
      if (gaps_.has_early_runs()) ConsiderSplit(decisions, v, begin, to);
    }
  }
  return cuts_;
}

void CutFinder::IndexExcess(std::span<const Bytes> room) {
  num_above_.assign(room.size() + 1, 0);
  bytes_above_.assign(room.size() + 1, 0);
  for (size_t e = 0; e < room.size(); ++e) {
    const Bytes above = std::max<Bytes>(0, -room[e]);
    num_above_[e + 1] = num_above_[e] + (above > 0);
    bytes_above_[e + 1] = bytes_above_[e] + static_cast<double>(above);
  }
}

void CutFinder::IndexVersions() {
  const auto versions = rollout_.versions();
  CountInto(versions_ptr_, graph_.num_tensors(), [&](auto&& add) {
    for (const Version& version : versions) add(version.tensor);
  });
  versions_.resize(versions.size());
  for (VersionIdx v = std::ssize(versions) - 1; v >= 0; --v) {
    const auto& [t, made, last_read, expires, _] = versions[At(v)];
    versions_[At(--versions_ptr_[At(t) + 1])] = {made, expires, last_read, v};
  }
  // Every row's end was counted down to its begin, one row to the right.
  versions_ptr_.erase(versions_ptr_.begin());
  versions_ptr_.push_back(std::ssize(versions));
}

void CutFinder::IndexReads() {
  const auto reads = rollout_.reads();
  CountInto(reads_ptr_, std::ssize(rollout_.versions()), [&](auto&& add) {
    for (const auto& [version, _] : reads) add(version);
  });
  reads_.resize(reads.size());
  for (size_t i = reads.size(); i-- > 0;) {
    reads_[At(--reads_ptr_[At(reads[i].first) + 1])] = reads[i].second;
  }
  reads_ptr_.erase(reads_ptr_.begin());
  reads_ptr_.push_back(std::ssize(reads));
}

void CutFinder::IndexFirstRuns() {
  first_run_.resize(At(graph_.num_ops()));
  const auto executions = rollout_.executions();
  for (ExecIdx e = 0; e < std::ssize(executions); ++e) {
    if (!executions[At(e)].is_recompute) first_run_[At(executions[At(e)].op)] = e;
  }
}

// The bytes above capacity in (from, to) that `bytes` less would remove.
double CutFinder::Excess(Bytes bytes, ExecIdx from, ExecIdx to) const {
  if (to <= from + 1) return 0;
  const auto num = num_above_[At(to)] - num_above_[At(from + 1)];
  const double above = bytes_above_[At(to)] - bytes_above_[At(from + 1)];
  return std::min(static_cast<double>(bytes) * static_cast<double>(num), above);
}

// Execution `e` reads `version` and makes something that could have its block.
bool CutFinder::CouldBeTakenOver(VersionIdx version, ExecIdx e) const {
  const auto versions = rollout_.versions();
  const auto& [t, made, last_read, expires, takes_over] = versions[At(version)];
  if (made == e) return false;
  const OpIdx op = rollout_.executions()[At(e)].op;
  for (const InPlacePair& pair : graph_.in_place(op)) {
    if (pair.input != t || !gaps_.has_gaps(pair.output)) continue;
    const Lifetime* result = VersionAt(pair.output, e + 1);
    if (result != nullptr && result->made == e &&
        versions[At(result->version)].takes_over == kNone &&
        rollout_.Size(pair.output) == rollout_.Size(t)) {
      return true;
    }
  }
  return false;
}

// `version` is idle from `from` to its read number `read` at `to`; at `from`
// already, if it `frees_at_once`.
void CutFinder::Consider(const Decisions& decisions, VersionIdx version,
                         ExecIdx from, ExecIdx to, int64_t read,
                         bool frees_at_once) {
  const TensorIdx t = rollout_.versions()[At(version)].tensor;
  const Position reader = rollout_.PositionOf(to);
  const GapIdx gap = gaps_.at(t, reader);
  if (!gaps_.may_drop(gap)) return;
  const uint8_t present = decisions[At(gap)];
  const bool entered_gap =
      rollout_.PositionOf(rollout_.versions()[At(version)].made) <= gaps_.begin(gap);
  const bool idle_since_begin = rollout_.PositionOf(from) <= gaps_.begin(gap);
  Cut cut{.gap = gap, .from = from - frees_at_once, .to = to};
  if (idle_since_begin) {
    cut.decision = present & static_cast<uint8_t>(~kKeepInGap);
  } else if (entered_gap) {
    // Read by a recomputation before. Kept for those, not for the end?
    const bool is_use = reader == gaps_.end(gap) && !gaps_.ends_with_split(gap);
    cut.decision = is_use ? kKeepInGap : 0;
  } else {
    cut.decision = 0;
  }
  if (cut.decision == present) return;
  cut.relief = Excess(rollout_.Size(t), cut.from, to);
  cut.seconds = Price(t, to, &cut.relief);
  if (cut.relief <= 0) return;
  if (cut.decision == 0) {
    // Made again for everyone who asks from here to the end of the gap.
    Position last = reader;
    int64_t num_askers = 1;
    for (int64_t i = read; i < reads_ptr_[At(version) + 1]; ++i) {
      const Position asker = rollout_.PositionOf(reads_[At(i)]);
      if (asker > gaps_.end(gap)) break;
      if (asker != last) ++num_askers;
      last = asker;
    }
    cut.seconds *= static_cast<double>(num_askers);
  }
  Add(cut);
}

void CutFinder::Add(const Cut& cut) {
  if (cut.relief <= 0 ||
      cut.seconds == std::numeric_limits<Seconds>::infinity()) {
    return;
  }
  if (cut.seconds > most_seconds_) {
    has_too_dear_ = true;
  } else {
    cuts_.push_back(cut);
  }
}

// `version` is idle from `from` to `to`, and across a split: it may be missing up to
// there, and be made again before what it is made from is gone.
void CutFinder::ConsiderSplit(const Decisions& decisions, VersionIdx version,
                              ExecIdx from, ExecIdx to) {
  const TensorIdx t = rollout_.versions()[At(version)].tensor;
  const Position idle_from = rollout_.PositionOf(from);
  GapIdx gap = gaps_.at(t, rollout_.PositionOf(to));
  for (int i = 0; i < kMostSplitsInARow && gaps_.begins_with_split(gap); ++i) {
    if (decisions[At(gap)] != kKeep) return;
    --gap;
    if (idle_from > gaps_.begin(gap) || !gaps_.may_drop(gap)) return;
    if (decisions[At(gap)] != kKeep) return;
    Cut cut{.gap = gap,
            .decision = kMakeAtEnd,
            .from = from,
            .to = first_run_[At(gaps_.end(gap))]};
    cut.relief = Excess(rollout_.Size(t), cut.from, cut.to);
    cut.seconds = Price(t, cut.to, &cut.relief);
    Add(cut);
  }
}

// The version of `t` that execution `reader` finds, or nullptr.
const CutFinder::Lifetime* CutFinder::VersionAt(TensorIdx t,
                                                ExecIdx reader) const {
  const Lifetime* version = versions_.data() + versions_ptr_[At(t)];
  int64_t num = versions_ptr_[At(t) + 1] - versions_ptr_[At(t)];
  if (num == 0) return nullptr;
  // The last one made before the reader, by bisection without branches to predict:
  // most of the time of a long plan is spent here.
  while (num > 1) {
    const int64_t half = num / 2;
    version = version[half].made < reader ? version + half : version;
    num -= half;
  }
  const bool is_there = version->made < reader && version->expires >= reader;
  return is_there ? version : nullptr;
}

// Seconds to make `t` again right before `reader`, given what is there, or some that
// are too many; takes from `relief` what is lost to inputs that must be held for it. Ends
// where nothing is left of that: most of what could be dropped relieves nothing.
Seconds CutFinder::Price(TensorIdx t, ExecIdx reader, double* relief) {
  touched_.clear();
  const Seconds seconds = PriceChain(t, reader, relief);
  lookups_ += std::ssize(touched_);
  return seconds;
}

Seconds CutFinder::PriceChain(TensorIdx t, ExecIdx reader, double* relief) {
  ++walk_;
  stack_.assign(1, graph_.producer(t));
  visited_[At(stack_[0])] = walk_;
  Seconds seconds = 0;
  for (size_t i = 0; i < stack_.size(); ++i) {
    const OpIdx op = stack_[i];
    seconds += graph_.seconds(op);
    if (seconds > most_seconds_) break;
    if (stack_.size() > kLongestChain) {
      return std::numeric_limits<Seconds>::infinity();
    }
    for (const TensorIdx input : gaps_.inputs(op)) {
      touched_.push_back(input);
      const Lifetime* version = VersionAt(input, reader);
      if (version == nullptr) {
        if (!graph_.has_way_back(input)) {
          return std::numeric_limits<Seconds>::infinity();
        }
        const OpIdx producer = graph_.producer(input);
        if (visited_[At(producer)] == walk_) continue;
        visited_[At(producer)] = walk_;
        stack_.push_back(producer);
      } else if (version->last_read < reader) {
        *relief -= Excess(rollout_.Size(input), version->last_read, reader);
        if (*relief <= 0) return seconds;
      }
    }
  }
  return seconds;
}

std::span<const TensorIdx> CutFinder::Touched(const Cut& cut) {
  double relief = std::numeric_limits<double>::infinity();
  Price(gaps_.tensor(cut.gap), cut.to, &relief);
  return touched_;
}

}  // namespace coop
