#include "core/online/density.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace coop {
namespace {

Bytes PoolBytesMade(const Graph& graph, OpIdx op) {
  Bytes bytes = 0;
  for (const TensorIdx t : graph.outputs(op)) {
    if (!graph.is_external(t)) bytes += graph.bytes(t);
  }
  return bytes;
}

}  // namespace

double CostDensity(const Graph& graph, OpIdx op) {
  const Bytes bytes = PoolBytesMade(graph, op);
  if (bytes == 0) return std::numeric_limits<double>::infinity();
  return graph.seconds(op) / static_cast<double>(bytes);
}

double DensityThreshold(const Graph& graph) {
  struct Sample {
    double log_density;
    double weight;
  };
  std::vector<Sample> samples;
  double total_weight = 0;
  double total_moment = 0;
  for (OpIdx op = 0; op < graph.num_ops(); ++op) {
    const double density = CostDensity(graph, op);
    if (density == 0 || !std::isfinite(density)) continue;
    const Sample sample{std::log(density),
                        static_cast<double>(PoolBytesMade(graph, op))};
    samples.push_back(sample);
    total_weight += sample.weight;
    total_moment += sample.weight * sample.log_density;
  }
  std::ranges::sort(samples, {}, &Sample::log_density);

  double threshold = 0;
  double best_variance = 0;
  double weight = 0;
  double moment = 0;
  for (size_t i = 0; i + 1 < samples.size(); ++i) {
    weight += samples[i].weight;
    moment += samples[i].weight * samples[i].log_density;
    if (samples[i].log_density == samples[i + 1].log_density) continue;
    const double other_weight = total_weight - weight;
    const double distance =
        moment / weight - (total_moment - moment) / other_weight;
    const double variance = weight * other_weight * distance * distance;
    if (variance <= best_variance) continue;
    best_variance = variance;
    threshold = std::exp(
        (samples[i].log_density + samples[i + 1].log_density) / 2);
  }
  return threshold;
}

}  // namespace coop
