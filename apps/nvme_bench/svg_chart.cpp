#include "apps/nvme_bench/svg_chart.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdarg>
#include <cstdio>

namespace sluice::nvme_bench {
namespace {

// Pixels.
constexpr double kWidth = 660, kHeight = 340;  // of a chart with its margins; the legend is in the right one
constexpr double kLeft = 64, kRight = 170, kTop = 36, kBottom = 52;
constexpr double kTitle = 40, kLegendLine = 16;
constexpr size_t kColumns = 2;

// Six hues that stay apart on white and on near-black, and in the order that colour-blind eyes tell apart
// best (after Wong, Nature Methods 8, 2011, darkened to 3:1 against white).
constexpr std::array kColours = {"#2a7fc1", "#d9652b", "#159b76", "#b861a0", "#a8820c", "#7f8793"};

constexpr const char* kStyle =
    "text{font-family:system-ui,sans-serif;font-size:12px;fill:#24292f}"
    ".title{font-size:14px;font-weight:600}.picture{font-size:16px;font-weight:600}"
    ".page{fill:#ffffff}.grid{stroke:#d8dee4;stroke-width:1}.axis{stroke:#57606a;stroke-width:1}"
    ".curve{fill:none;stroke-width:1.8;stroke-linejoin:round}"
    "@media (prefers-color-scheme:dark){text{fill:#e6edf3}.page{fill:#0d1117}.grid{stroke:#2b3138}"
    ".axis{stroke:#8b949e}}";

[[gnu::format(printf, 1, 2)]] std::string text(const char* format, ...) {
  std::array<char, 256> buffer;
  std::va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(buffer.data(), buffer.size(), format, arguments);
  va_end(arguments);
  return buffer.data();
}

// As XML 1.0 wants it; control characters, which it has no way to write, and bytes that may be no UTF-8
// become question marks.
std::string escaped(const std::string& plain) {
  std::string result;
  for (const char c : plain) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += c >= ' ' && c <= '~' ? c : '?';
    }
  }
  return result;
}

std::string words(double x, double y, const char* anchor, const std::string& what,
                  const std::string& more = "") {
  return text("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\"%s>", x, y, anchor, more.c_str()) +
         escaped(what) + "</text>\n";
}

std::string line(double x1, double y1, double x2, double y2, const char* style) {
  return text("<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" class=\"%s\"/>\n", x1, y1, x2, y2,
              style);
}

// The share of the axis below a value; NaN for what it cannot show.
double place(const Axis& axis, double value) {
  if (!axis.logarithmic) return (value - axis.least) / (axis.most - axis.least);
  if (!(value > 0)) return std::nan("");
  return std::log(value / axis.least) / std::log(axis.most / axis.least);
}

class Drawing {
 public:
  Drawing(const Chart& chart, double left, double top) : chart_(chart), left_(left), top_(top) {}

  std::string svg() const {
    std::string all = words(left_ + kLeft, top_ + 20, "start", chart_.title, " class=\"title\"");
    all += axes();
    for (size_t i = 0; i < chart_.curves.size(); ++i) all += curve(i);
    return all;
  }

 private:
  double x(double value) const { return left_ + kLeft + place(chart_.x, value) * (kWidth - kLeft - kRight); }
  double y(double value) const {
    return top_ + kHeight - kBottom - place(chart_.y, value) * (kHeight - kTop - kBottom);
  }

  std::string axes() const {
    const double right = left_ + kWidth - kRight, bottom = top_ + kHeight - kBottom;
    std::string all;
    for (const Tick& tick : chart_.x.ticks) {
      const double at = x(tick.value);
      all += line(at, top_ + kTop, at, bottom, "grid") + words(at, bottom + 17, "middle", tick.label);
    }
    for (const Tick& tick : chart_.y.ticks) {
      const double at = y(tick.value);
      all += line(left_ + kLeft, at, right, at, "grid") + words(left_ + kLeft - 7, at + 4, "end", tick.label);
    }
    all += line(left_ + kLeft, bottom, right, bottom, "axis") +
           line(left_ + kLeft, top_ + kTop, left_ + kLeft, bottom, "axis");
    all += words((left_ + kLeft + right) / 2, bottom + 38, "middle", chart_.x.label);
    const double middle = (top_ + kTop + bottom) / 2;
    return all + words(left_ + 16, middle, "middle", chart_.y.label,
                       text(" transform=\"rotate(-90 %.1f %.1f)\"", left_ + 16, middle));
  }

  std::string curve(size_t index) const {
    const Curve& curve = chart_.curves[index];
    const char* colour = kColours[index % kColours.size()];
    // Six colours, then the same ones dashed.
    const char* dashes = index >= kColours.size() ? " stroke-dasharray=\"5 3\"" : "";
    std::string points;
    for (const auto& [at_x, at_y] : curve.points) {
      const double px = x(at_x), py = y(at_y);
      if (std::isfinite(px) && std::isfinite(py))
        points += text("%s%.1f,%.1f", points.empty() ? "" : " ", px, py);
    }
    std::string all;
    if (!points.empty())
      all += text("<polyline class=\"curve\" stroke=\"%s\"%s points=\"", colour, dashes) + points + "\"/>\n";
    const double legend_x = left_ + kWidth - kRight + 12;
    const double legend_y = top_ + kTop + 8 + static_cast<double>(index) * kLegendLine;
    return all +
           text(
               "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\" stroke-width=\"3\"%s/>\n",
               legend_x, legend_y - 4, legend_x + 20, legend_y - 4, colour, dashes) +
           words(legend_x + 26, legend_y, "start", curve.name);
  }

  const Chart& chart_;
  const double left_, top_;
};

}  // namespace

Axis linear_axis(std::string label, double most) {
  if (!(most > 0) || !std::isfinite(most)) most = 1;
  constexpr double kTicks = 5;
  const double rough = most / kTicks, decade = std::pow(10, std::floor(std::log10(rough)));
  const double step = rough <= decade       ? decade
                      : rough <= 2 * decade ? 2 * decade
                      : rough <= 5 * decade ? 5 * decade
                                            : 10 * decade;
  Axis axis{.label = std::move(label), .least = 0, .most = std::ceil(most / step - 1e-9) * step, .ticks = {}};
  for (double value = 0; value <= axis.most + step / 2; value += step)
    axis.ticks.push_back({value, text("%.10g", value)});
  return axis;
}

Axis decade_axis(std::string label, double least, double most) {
  const bool usable = least > 0 && most >= least && std::isfinite(most);
  const double first = usable ? std::floor(std::log10(least) + 1e-9) : 0;
  const double last = std::max(first + 1, usable ? std::ceil(std::log10(most) - 1e-9) : 1);
  Axis axis{.label = std::move(label),
            .least = std::pow(10, first),
            .most = std::pow(10, last),
            .logarithmic = true,
            .ticks = {}};
  for (double power = first; power <= last; ++power) {
    const double value = std::pow(10, power);
    axis.ticks.push_back({value, text("%.10g", value)});
  }
  return axis;
}

std::string svg_picture(const std::string& title, const std::vector<Chart>& charts) {
  const size_t columns = std::clamp<size_t>(charts.size(), 1, kColumns);
  const size_t rows = (charts.size() + columns - 1) / columns;
  const double width = static_cast<double>(columns) * kWidth;
  const double height = kTitle + static_cast<double>(rows) * kHeight;
  std::string svg = text(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" "
      "height=\"%.0f\" role=\"img\">\n",
      width, height, width, height);
  svg += "<title>" + escaped(title) + "</title>\n<style>" + kStyle + "</style>\n";
  svg += "<rect class=\"page\" width=\"100%\" height=\"100%\"/>\n";
  svg += words(kLeft, 26, "start", title, " class=\"picture\"");
  for (size_t i = 0; i < charts.size(); ++i) {
    svg += Drawing(charts[i], static_cast<double>(i % columns) * kWidth,
                   kTitle + static_cast<double>(i / columns) * kHeight)
               .svg();
  }
  return svg + "</svg>\n";
}

}  // namespace sluice::nvme_bench
