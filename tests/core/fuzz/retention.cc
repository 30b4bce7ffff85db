#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include "core/loops/frontier.h"
#include "core/loops/retention.h"
#include "fuzz.h"
#include "random_graph.h"

namespace coop {
namespace {

// Sizes and times are small whole numbers, in most cases, so that ties are many.
RetentionProblem RandomBody(Random& random, int64_t most_equations) {
  RetentionProblem body;
  const bool is_extreme = random.Chance(10);
  const Bytes most_bytes = is_extreme ? kMostBytes / 512 : random.Between(1, 9);
  const auto add_value = [&](OpIdx maker) {
    body.value_bytes.push_back(random.Between(0, most_bytes));
    body.value_maker.push_back(maker);
  };
  for (int64_t i = random.Between(1, 3); i > 0; --i) add_value(kNone);
  body.operands_ptr = {0};
  for (OpIdx i = random.Between(0, most_equations); i > 0; --i) {
    const OpIdx equation = std::ssize(body.equation_seconds);
    const int64_t num_values = std::ssize(body.value_bytes);
    const double scale = is_extreme && random.Chance(50) ? 1e14 : 1.0;
    body.equation_seconds.push_back(
        static_cast<double>(random.Between(0, 9)) * scale);
    body.equation_may_run_again.push_back(!random.Chance(10));
    for (int64_t k = random.Between(0, 3); k > 0; --k) {
      const int64_t reach = random.Chance(20) ? num_values : 4;
      body.operands.push_back(
          random.Between(std::max<int64_t>(0, num_values - reach), num_values - 1));
    }
    body.operands_ptr.push_back(std::ssize(body.operands));
    for (int64_t k = random.Chance(15) ? 2 : 1; k > 0; --k) add_value(equation);
  }
  for (int64_t v = 0; v < std::ssize(body.value_bytes); ++v) {
    if (random.Chance(30)) body.needed.push_back(v);
  }
  body.seconds_per_byte = is_extreme && random.Chance(50)
                              ? (random.Chance(50) ? 1e-30 : 1e18)
                              : static_cast<double>(random.Between(1, 4)) / 4;
  return body;
}

struct Point {
  Bytes bytes = 0;
  double seconds = 0;
};

// What running `runs` again leaves to keep.
Point PointOf(const RetentionProblem& body, const std::vector<uint8_t>& runs) {
  std::vector<uint8_t> is_needed(body.value_bytes.size(), 0);
  for (const int64_t v : body.needed) is_needed[At(v)] = 1;
  Point point;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (!runs[i]) continue;
    point.seconds += body.equation_seconds[i];
    for (int64_t k = body.operands_ptr[i]; k < body.operands_ptr[i + 1]; ++k) {
      is_needed[At(body.operands[At(k)])] = 1;
    }
  }
  for (size_t v = 0; v < is_needed.size(); ++v) {
    const OpIdx maker = body.value_maker[v];
    const bool is_made = maker != kNone && runs[At(maker)];
    if (is_needed[v] && !is_made) point.bytes += body.value_bytes[v];
  }
  point.seconds += static_cast<double>(point.bytes) * body.seconds_per_byte;
  return point;
}

// Whether `other` is nowhere better than the hull, by more than `rounding` seconds.
bool IsBelow(const std::vector<Point>& hull, const Point& other,
             double rounding) {
  const double slack = rounding + 1e-9 * (other.seconds + hull.back().seconds);
  if (other.bytes < hull.back().bytes) return false;
  if (other.seconds < hull.front().seconds - slack) return false;
  for (size_t i = 1; i < hull.size(); ++i) {
    const auto& [more, fast] = hull[i - 1];
    const auto& [less, slow] = hull[i];
    const double share = static_cast<double>(more - other.bytes) /
                         static_cast<double>(more - less);
    if (other.seconds < fast + (slow - fast) * share - slack) return false;
  }
  return true;
}

// Whether the corners are what they say, in order, and no choice is below them.
bool IsFrontier(const RetentionProblem& body,
                const std::vector<Retention>& corners,
                const std::vector<std::vector<uint8_t>>& choices) {
  std::vector<Point> hull;
  for (const auto& [kept_bytes, kept, recomputed] : corners) {
    std::vector<uint8_t> runs(body.equation_seconds.size(), 0);
    for (const OpIdx i : recomputed) {
      if (!body.equation_may_run_again[At(i)]) return false;
      runs[At(i)] = 1;
    }
    hull.push_back(PointOf(body, runs));
    if (hull.back().bytes != kept_bytes) return false;
    if (hull.size() > 1 && kept_bytes >= hull[hull.size() - 2].bytes) return false;
    Bytes sum = 0;
    for (const int64_t v : kept) sum += body.value_bytes[At(v)];
    if (sum != kept_bytes) return false;
  }
  // A unit for each value and equation, and half a unit for each equation in a sum of
  // them. See time_units.h for units.
  double rounding = 0;
  for (const double seconds : body.equation_seconds) rounding += seconds;
  const size_t num_nodes = body.equation_seconds.size() + body.value_bytes.size();
  rounding *= std::ldexp(static_cast<double>(num_nodes), -48);
  return !hull.empty() &&
         std::ranges::all_of(choices, [&](const std::vector<uint8_t>& runs) {
           return IsBelow(hull, PointOf(body, runs), rounding);
         });
}

}  // namespace

bool FuzzRetention(uint64_t seed) {
  Random random(seed);
  const bool is_small = !random.Chance(10);
  const RetentionProblem body = RandomBody(random, is_small ? 8 : 200);
  CheckRetention("fuzz", body);
  std::vector<std::vector<uint8_t>> choices;
  // All, or some.
  const size_t count = body.equation_seconds.size();
  const uint64_t num_choices = is_small ? uint64_t{1} << count : 50;
  for (uint64_t number = 0; number < num_choices; ++number) {
    std::vector<uint8_t>& runs = choices.emplace_back(count);
    for (size_t i = 0; i < count; ++i) {
      const bool runs_again =
          is_small ? (number >> i & 1) != 0 : random.Chance(50);
      runs[i] = runs_again && body.equation_may_run_again[i];
    }
  }
  const std::vector<Retention> corners = RetentionFrontier(body);
  if (IsFrontier(body, corners, choices)) return true;
  std::fprintf(stderr, "retention seed %llu: no frontier\n",
               static_cast<unsigned long long>(seed));
  return false;
}

}  // namespace coop
