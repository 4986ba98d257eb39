#include "apps/nvme_bench/svg_chart.h"

#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>
#include <sstream>

#include "tests/support/xml_check.h"

namespace sluice::nvme_bench {
namespace {

using test::XmlElement;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::SizeIs;

std::vector<std::string> labels(const Axis& axis) {
  std::vector<std::string> all;
  for (const Tick& tick : axis.ticks) all.push_back(tick.label);
  return all;
}

TEST(Axes, HaveRoundTicks) {
  EXPECT_THAT(labels(linear_axis("x", 4.3)), ::testing::ElementsAre("0", "1", "2", "3", "4", "5"));
  EXPECT_THAT(labels(linear_axis("x", 0.5)), ::testing::ElementsAre("0", "0.1", "0.2", "0.3", "0.4", "0.5"));
  EXPECT_GE(linear_axis("x", 86400).most, 86400);
  for (const double most : {0.0, -1.0, std::nan(""), std::numeric_limits<double>::infinity()})
    EXPECT_EQ(linear_axis("x", most).most, 1) << most;
}

TEST(Axes, OfDecadesHoldBothEnds) {
  const Axis axis = decade_axis("x", 0.07, 11);
  EXPECT_DOUBLE_EQ(axis.least, 0.01);
  EXPECT_DOUBLE_EQ(axis.most, 100);
  EXPECT_THAT(labels(axis), ::testing::ElementsAre("0.01", "0.1", "1", "10", "100"));
  EXPECT_EQ(labels(decade_axis("x", 1, 10)).size(), 2u);
  EXPECT_EQ(labels(decade_axis("x", 1, 1)).size(), 2u);  // an axis needs a length
  EXPECT_EQ(decade_axis("x", 0, 0).least, 1);
}

TEST(XmlChecks, FindFaults) {
  for (const char* text : {"<a><b/></a>", "<a x=\"1\" y=\"&lt;\">t &amp; u</a>\n"})
    EXPECT_EQ(test::xml_fault(text), "") << text;
  for (const char* text : {"", "<a>", "<a></b>", "<a/><b/>", "<a x=1/>", "<a x=\"1\" x=\"2\"/>", "<a>&x;</a>",
                           "<a>\x01</a>", "<a/>x", "<a x=\"<\"/>", "<a"})
    EXPECT_NE(test::xml_fault(text), "") << text;
}

class SvgTest : public ::testing::Test {
 protected:
  // The picture's elements; it must be well-formed.
  static std::vector<XmlElement> draw(const std::vector<Chart>& charts) {
    std::vector<XmlElement> elements;
    const std::string svg = svg_picture("drives & \"others\" <\x01>", charts);
    EXPECT_EQ(test::xml_fault(svg, &elements), "") << svg;
    return elements;
  }
  static std::vector<XmlElement> named(const std::vector<XmlElement>& all, const std::string& name) {
    std::vector<XmlElement> found;
    for (const XmlElement& element : all)
      if (element.name == name) found.push_back(element);
    return found;
  }
  // Of a curve's attributes, its points.
  static std::vector<std::pair<double, double>> points(const XmlElement& curve) {
    const size_t begin = curve.attributes.find("points=\"") + 8;
    std::istringstream in(curve.attributes.substr(begin, curve.attributes.find('"', begin) - begin));
    std::vector<std::pair<double, double>> all;
    char comma = 0;
    for (double x = 0, y = 0; in >> x >> comma >> y;) all.emplace_back(x, y);
    return all;
  }
};

TEST_F(SvgTest, DrawsCurvesOntoTheirAxes) {
  const Chart rate{.title = "rate",
                   .x = linear_axis("time, s", 10),
                   .y = linear_axis("rate, GB/s", 4),
                   .curves = {{"write", {{0, 0}, {5, 2}, {10, 4}}}}};
  const Chart latency{.title = "latency",
                      .x = linear_axis("x", 1),
                      .y = decade_axis("latency, ms", 0.1, 10),
                      .curves = {{"read", {{0, 0.1}, {1, 1}}}, {"none", {}}}};
  const std::vector<XmlElement> all = draw({rate, latency});
  const std::vector<XmlElement> curves = named(all, "polyline");
  ASSERT_THAT(curves, SizeIs(2));
  const auto rates = points(curves[0]);
  ASSERT_THAT(rates, SizeIs(3));
  EXPECT_NEAR(rates[1].first, (rates[0].first + rates[2].first) / 2, 0.11);
  EXPECT_NEAR(rates[1].second, (rates[0].second + rates[2].second) / 2, 0.11);
  EXPECT_LT(rates[2].second, rates[0].second);  // y grows downwards
  const auto latencies = points(curves[1]);     // 0.1 of 0.1 ... 10 is at the bottom, 1 in the middle
  ASSERT_THAT(latencies, SizeIs(2));
  EXPECT_NEAR(latencies[0].second, rates[0].second, 0.11);
  EXPECT_NEAR(latencies[1].second, rates[1].second, 0.11);
  EXPECT_GT(latencies[0].first, rates[2].first);  // the second chart is on the right
  std::vector<std::string> texts;
  for (const XmlElement& element : named(all, "text")) texts.push_back(element.text);
  for (const char* text : {"time, s", "rate, GB/s", "latency, ms", "write", "read", "none", "0.1", "10"})
    EXPECT_THAT(texts, Contains(text));
  EXPECT_THAT(named(all, "style").at(0).text, HasSubstr("prefers-color-scheme:dark"));
}

TEST_F(SvgTest, IsWellFormedWhateverTheNumbers) {
  const double nan = std::nan(""), infinity = std::numeric_limits<double>::infinity();
  const Chart odd{.title = "'<&>\xff",
                  .x = decade_axis("x", 0, 0),
                  .y = linear_axis("y", 0),
                  .curves = {{"a<b", {{0, 1}, {nan, 1}, {1, nan}, {1, infinity}, {-1, 1}, {10, 1}}}}};
  const std::vector<XmlElement> all = draw({odd});
  EXPECT_THAT(points(named(all, "polyline").at(0)), SizeIs(1));
  draw({});
  draw(std::vector<Chart>(7, odd));
}

}  // namespace
}  // namespace sluice::nvme_bench
