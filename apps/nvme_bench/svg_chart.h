#pragma once

#include <string>
#include <utility>
#include <vector>

namespace sluice::nvme_bench {

struct Tick {
  double value = 0;
  std::string label;
};

struct Axis {
  std::string label;  // with its unit
  double least = 0, most = 1;
  bool logarithmic = false;  // then both are positive
  std::vector<Tick> ticks;   // within the range
};
// From 0, with round ticks that `most` lies within.
Axis linear_axis(std::string label, double most);
// Whole decades that hold both, each a tick; `unit` goes behind the numbers ("0.1", "1", "10").
Axis decade_axis(std::string label, double least, double most);

struct Curve {
  std::string name;
  std::vector<std::pair<double, double>> points;  // (x, y), ascending in x
};

// Points that are not finite, or not positive on a logarithmic axis, are left out.
struct Chart {
  std::string title;
  Axis x, y;
  std::vector<Curve> curves;
};

// One picture of charts, two a row, each with its legend: SVG 1.1 that follows the viewer's light or dark
// scheme. Well-formed whatever the texts hold.
std::string svg_picture(const std::string& title, const std::vector<Chart>& charts);

}  // namespace sluice::nvme_bench
