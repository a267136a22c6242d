// SPDX-License-Identifier: Apache-2.0
#include "eval/svg_plot.h"

#include <gtest/gtest.h>

#include <limits>
#include <regex>

#include "eval/test_markup.h"

namespace kv2 {
namespace {

using testing::unbalanced;

TEST(SvgPlot, EscapesEveryMarkupCharacter) {
  EXPECT_EQ(escape_html("a<b>&\"c'"), "a&lt;b&gt;&amp;&quot;c&#39;");
}

TEST(SvgPlot, NumbersForReaders) {
  EXPECT_EQ(readable(0.031134), "0.03113");
  EXPECT_EQ(readable(37187584), "37,187,584");
  EXPECT_EQ(readable(1000), "1,000");
  EXPECT_EQ(readable(-1234567), "-1,234,567");
  EXPECT_EQ(readable(2.5), "2.5");
  EXPECT_EQ(readable(0), "0");
  EXPECT_EQ(readable(0.0000123), "1.23e-05");
  EXPECT_EQ(readable(0.00001), "1e-05");
  EXPECT_EQ(readable(std::numeric_limits<double>::quiet_NaN()), "–");
}

/// Centres of the circles, x and y.
std::vector<std::pair<double, double>> circles(const std::string& svg) {
  std::vector<std::pair<double, double>> out;
  const std::regex circle("<circle cx=\"([-0-9.]+)\" cy=\"([-0-9.]+)\"");
  for (std::sregex_iterator at(svg.begin(), svg.end(), circle), end; at != end; ++at)
    out.emplace_back(std::stod((*at)[1]), std::stod((*at)[2]));
  return out;
}

TEST(SvgPlot, LogAxesKeepRatios) {
  const std::string svg =
      xy_plot({.x_label = "x", .y_label = "y", .x = AxisScale::Log, .y = AxisScale::Log},
              {{.name = "s", .points = {{1, 0.01}, {10, 0.1}, {100, 1}}, .draw = Draw::Marks}});
  const auto at = circles(svg);
  ASSERT_EQ(at.size(), 3u);
  EXPECT_NEAR(at[1].first - at[0].first, at[2].first - at[1].first, 0.2);
  EXPECT_NEAR(at[0].second - at[1].second, at[1].second - at[2].second, 0.2);
  EXPECT_GT(at[0].second, at[2].second) << "y grows upwards";
  EXPECT_EQ(unbalanced(svg), "");
}

TEST(SvgPlot, LeavesOutWhatALogAxisCannotShow) {
  const Axes axes{.x_label = "x", .y_label = "y", .y = AxisScale::Log};
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(xy_plot(axes, {{.name = "s", .points = {{1, 0}, {2, nan}}}}), "");
  const std::string svg = xy_plot(axes, {{.name = "s", .points = {{1, 0}, {2, 3}}, .draw = Draw::Marks}});
  EXPECT_EQ(circles(svg).size(), 1u);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
}

TEST(SvgPlot, LabelsOfEqualPointsDoNotCoverEachOther) {
  std::vector<Series> series;
  for (int i = 0; i < 12; i++)
    series.push_back(
        {.name = "method" + std::to_string(i), .points = {{2.5, 0.05}}, .draw = Draw::LabelledMarks});
  const std::string svg = xy_plot({.x_label = "bits", .y_label = "KL", .y = AxisScale::Log}, series);
  const std::regex label("<text x=\"([-0-9.]+)\" y=\"([-0-9.]+)\"[^>]*>method");
  std::vector<double> heights;
  for (std::sregex_iterator at(svg.begin(), svg.end(), label), end; at != end; ++at)
    heights.push_back(std::stod((*at)[2]));
  ASSERT_EQ(heights.size(), 12u);
  std::sort(heights.begin(), heights.end());
  for (size_t i = 1; i < heights.size(); i++) EXPECT_GE(heights[i] - heights[i - 1], 12);
  EXPECT_EQ(svg.find("class=\"legend\""), std::string::npos) << "marks are labelled: no legend";
}

TEST(HeatMap, OneCellPerValueThatIsThere) {
  const std::string svg = heat_map({.row_label = "depth",
                                    .column_label = "tokens",
                                    .rows = {"0 %", "100 %"},
                                    .columns = {"1,024", "<2048>"},
                                    .values = {1, 0.5, std::numeric_limits<double>::quiet_NaN(), 0},
                                    .full = 1,
                                    .percent = true});
  size_t cells = 0;
  for (size_t at = svg.find("<rect"); at != std::string::npos; at = svg.find("<rect", at + 1)) cells++;
  EXPECT_EQ(cells, 3u);
  EXPECT_NE(svg.find(">50</text>"), std::string::npos);
  EXPECT_NE(svg.find("&lt;2048&gt;"), std::string::npos);
  EXPECT_EQ(unbalanced(svg), "");
  EXPECT_EQ(heat_map({.row_label = "", .column_label = "", .rows = {"a"}, .columns = {}, .values = {}}), "");
}

}  // namespace
}  // namespace kv2
