#include "apps/nvme_bench/plots.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "apps/nvme_bench/svg_chart.h"

namespace sluice::nvme_bench {
namespace {

constexpr double kGb = 1e9;

Curve rate_curve(const std::string& name, const RateSeries& series) {
  Curve curve{.name = name, .points = {}};
  const std::vector<double> rates = series.rates();
  for (size_t i = 0; i < rates.size(); ++i)
    curve.points.emplace_back((static_cast<double>(i) + 0.5) * series.interval_seconds(), rates[i] / kGb);
  return curve;
}

// x: 1 / (1 - share), so that each nine takes the same room.
Curve latency_curve(const std::string& name, const LatencyHistogram& latency) {
  Curve curve{.name = name, .points = {}};
  const double most = std::max(2.0, static_cast<double>(latency.count()));
  double share_before = 0;
  for (const auto& [seconds, share] : latency.distribution()) {
    curve.points.emplace_back(1 / std::max(1 - share_before, 1 / most), seconds * 1e3);
    share_before = share;
  }
  // The slowest is as rare as one of all.
  if (!curve.points.empty()) curve.points.emplace_back(most, latency.largest_seconds() * 1e3);
  return curve;
}

Chart rate_chart(const std::string& title, std::vector<Curve> curves) {
  double seconds = 0, rate = 0;
  for (const Curve& curve : curves) {
    for (const auto& [x, y] : curve.points) {
      seconds = std::max(seconds, x);
      rate = std::max(rate, y);
    }
  }
  return {.title = title + ": rate over time",
          .x = linear_axis("time, s", seconds),
          .y = linear_axis("rate, GB/s", rate),
          .curves = std::move(curves)};
}

Axis share_axis(double most) {
  Axis axis = decade_axis("share of the transfers that took no longer, %", 1, most);
  for (Tick& tick : axis.ticks) {
    const auto nines = static_cast<int>(std::lround(std::log10(tick.value)));
    constexpr std::array kLabels = {"0", "90", "99", "99.9", "99.99", "99.999", "99.9999", "99.99999"};
    tick.label = nines < static_cast<int>(kLabels.size()) ? kLabels[static_cast<size_t>(nines)] : "";
  }
  return axis;
}

Chart latency_chart(const std::string& title, std::vector<Curve> curves) {
  double least = 0, most = 0, rarest = 10;
  for (const Curve& curve : curves) {
    for (const auto& [x, y] : curve.points) {
      if (!(y > 0)) continue;
      least = least > 0 ? std::min(least, y) : y;
      most = std::max(most, y);
      rarest = std::max(rarest, x);
    }
  }
  return {.title = title + ": latency",
          .x = share_axis(rarest),
          .y = decade_axis("latency, ms", least, most),
          .curves = std::move(curves)};
}

void add_charts(const std::string& title, std::vector<Curve> rates, std::vector<Curve> latencies,
                std::vector<Chart>& charts) {
  charts.push_back(rate_chart(title, std::move(rates)));
  charts.push_back(latency_chart(title, std::move(latencies)));
}

void add_drive(const DriveResult& result, std::vector<Chart>& charts) {
  std::vector<Curve> rates, latencies;
  const auto add = [&](const std::string& name, const Measurement& measurement) {
    rates.push_back(rate_curve(name, measurement.rate));
    latencies.push_back(latency_curve(name, measurement.latency));
  };
  for (const auto& [traffic, measurement] : result.measurements) add(std::string(name(traffic)), measurement);
  for (const MixedRate& mix : result.mixes)
    add(std::to_string(std::lround(mix.read_share * 100)) + " % reads", mix.measurement);
  if (result.sustained) add("sustained write", result.sustained->measurement);
  for (const LoadedLatency& loaded : result.loaded) {
    latencies.push_back(latency_curve(loaded.load == kNoLoad ? "4 KiB alone" : "4 KiB beside " + loaded.load,
                                      loaded.measurement.probe_latency));
  }
  const std::string disk = result.drive.disk.empty() ? "" : " (" + result.drive.disk + ")";
  add_charts(result.folder + disk, std::move(rates), std::move(latencies), charts);
}

void add_together(const TogetherResult& together, std::vector<Chart>& charts) {
  std::vector<Curve> rates, latencies;
  for (const auto& [traffic, measurement] : together.striped) {
    const std::string is(name(traffic));
    rates.push_back(rate_curve(is, measurement.rate));
    latencies.push_back(latency_curve(is, measurement.latency));
  }
  add_charts("all drives, striped", std::move(rates), std::move(latencies), charts);
}

}  // namespace

std::string report_svg(const Report& report) {
  std::vector<Chart> charts;
  for (const DriveResult& result : report.drives) add_drive(result, charts);
  if (report.together) add_together(*report.together, charts);
  return svg_picture("What the drives give (nvme_bench of Sluice)", charts);
}

}  // namespace sluice::nvme_bench
