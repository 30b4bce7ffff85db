// A moment after which nothing more is begun.
#ifndef COOP_CORE_BASE_DEADLINE_H_
#define COOP_CORE_BASE_DEADLINE_H_

#include <chrono>
#include <optional>

namespace coop {

class Deadline {
 public:
  // nullopt: never.
  explicit Deadline(std::optional<double> seconds) {
    if (!seconds) return;
    end_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                              std::chrono::duration<double>(*seconds));
  }

  [[nodiscard]] bool IsOver() const { return end_ && Clock::now() >= *end_; }

  // nullopt: no end.
  [[nodiscard]] std::optional<double> SecondsLeft() const {
    if (!end_) return std::nullopt;
    const std::chrono::duration<double> left = *end_ - Clock::now();
    return left.count() > 0 ? left.count() : 0;
  }

 private:
  using Clock = std::chrono::steady_clock;

  std::optional<Clock::time_point> end_;
};

}  // namespace coop

#endif  // COOP_CORE_BASE_DEADLINE_H_
