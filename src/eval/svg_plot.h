// SPDX-License-Identifier: Apache-2.0
// Plots as inline SVG for a page without scripts: lines and marks over two axes, and heat maps. Text takes
// the page's colour (currentColor), so light and dark pages look alike. Deterministic.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kv2 {

/// & < > " ' as entities.
std::string escape_html(std::string_view text);
/// Four significant digits, no exponent between 1e-4 and 1e6: "0.03113", "37,187,584".
std::string readable(double x);

/// The colour of the i-th series, one of eight that colour-blind readers tell apart (Okabe and Ito).
const char* series_colour(size_t i);

enum class AxisScale { Linear, Log };  // Log leaves out what is not above 0
enum class Draw { Line, Marks, LabelledMarks };

struct Series {
  std::string name;
  std::vector<std::pair<double, double>> points;  // x, y; in order of x where a line is drawn
  Draw draw = Draw::Line;
  int colour = -1;  // of series_colour; -1: its place among the series
};

struct Axes {
  std::string x_label, y_label;
  AxisScale x = AxisScale::Linear, y = AxisScale::Linear;
};

/// A plot with a legend (none where every series labels its marks); "" where no point can be drawn.
std::string xy_plot(const Axes& axes, const std::vector<Series>& series);

struct HeatMap {
  std::string row_label, column_label;
  std::vector<std::string> rows, columns;
  std::vector<double> values;  // [rows, columns]; NaN: an empty cell
  double full = 1;             // the value of full colour; 0 has none
  bool percent = false;        // how values are written
};
std::string heat_map(const HeatMap& map);

}  // namespace kv2
