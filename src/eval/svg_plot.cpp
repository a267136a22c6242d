// SPDX-License-Identifier: Apache-2.0
#include "eval/svg_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace kv2 {
namespace {

constexpr double kWidth = 760, kHeight = 380, kLeft = 72, kRight = 20, kTop = 12, kBottom = 46;

/// Data -> pixels of one axis.
class Axis {
 public:
  Axis(AxisScale scale, double from_pixel, double to_pixel)
      : log_(scale == AxisScale::Log), from_(from_pixel), to_(to_pixel) {}

  bool can_show(double x) const { return std::isfinite(x) && (!log_ || x > 0); }
  void include(double x) {
    low_ = std::min(low_, value(x));
    high_ = std::max(high_, value(x));
  }
  bool empty() const { return low_ > high_; }
  /// Room around the data; a linear axis of positive values begins at zero.
  void round_out() {
    if (!log_ && low_ > 0 && low_ < 0.6 * high_) low_ = 0;
    const double span = high_ > low_ ? high_ - low_ : (log_ ? 1 : std::max(std::abs(high_), 1.0));
    if (high_ <= low_ || log_) low_ -= 0.06 * span;
    if (low_ != 0 && !log_) low_ -= 0.04 * span;
    high_ += 0.06 * span;
  }
  double pixel(double x) const { return from_ + (value(x) - low_) / (high_ - low_) * (to_ - from_); }

  /// Of a logarithmic axis: powers of ten, with 2 and 5 or all digits between them where those are too few.
  std::vector<double> ticks() const {
    if (!log_) return round_numbers(low_, high_);
    for (const int digits : {0b10, 0b100110, 0b1111111110}) {  // bit m: m·10^e is a tick
      std::vector<double> out;
      for (int e = static_cast<int>(std::floor(low_)); e <= high_; e++)
        for (int m = 1; m < 10; m++) {
          const double x = m * std::pow(10.0, e);
          if ((digits >> m & 1) != 0 && std::log10(x) >= low_ && std::log10(x) <= high_) out.push_back(x);
        }
      if (out.size() >= 4) return out;
    }
    return round_numbers(std::pow(10.0, low_), std::pow(10.0, high_));
  }

 private:
  static std::vector<double> round_numbers(double low, double high) {
    const double raw = (high - low) / 6, unit = std::pow(10.0, std::floor(std::log10(raw)));
    double step = 10 * unit;
    for (const double m : {1.0, 2.0, 5.0})
      if (m * unit >= raw) {
        step = m * unit;
        break;
      }
    std::vector<double> out;
    for (double x = std::ceil(low / step) * step; x <= high + 1e-9 * step; x += step)
      out.push_back(std::abs(x) < 1e-9 * step ? 0 : x);
    return out;
  }
  double value(double x) const { return log_ ? std::log10(x) : x; }
  bool log_;
  double from_, to_;
  double low_ = std::numeric_limits<double>::infinity(), high_ = -low_;
};

std::string text_at(double x, double y, const char* anchor, std::string_view text, const char* more = "") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>", x, y, anchor, more,
                     escape_html(text));
}

std::string frame(const Axes& axes, const Axis& x, const Axis& y) {
  std::string out;
  for (const double t : x.ticks()) {
    out += fmt::format("<line class=\"grid\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\"/>",
                       x.pixel(t), kTop, kHeight - kBottom);
    out += text_at(x.pixel(t), kHeight - kBottom + 16, "middle", readable(t));
  }
  for (const double t : y.ticks()) {
    out += fmt::format("<line class=\"grid\" x1=\"{1}\" x2=\"{2}\" y1=\"{0:.1f}\" y2=\"{0:.1f}\"/>",
                       y.pixel(t), kLeft, kWidth - kRight);
    out += text_at(kLeft - 6, y.pixel(t) + 4, "end", readable(t));
  }
  out += text_at((kLeft + kWidth - kRight) / 2, kHeight - 8, "middle", axes.x_label);
  const double middle = (kTop + kHeight - kBottom) / 2;
  out += text_at(14, middle, "middle", axes.y_label,
                 fmt::format(" transform=\"rotate(-90 14 {:.1f})\"", middle).c_str());
  return out + "\n";
}

struct Box {
  double left, top, right, bottom;
  bool overlaps(const Box& b) const {
    return left < b.right && b.left < right && top < b.bottom && b.top < bottom;
  }
};

/// Names beside marks, moved down or up until none covers another.
class Labels {
 public:
  std::string place(double x, double y, const std::string& name, const char* colour) {
    const double width = 6.6 * static_cast<double>(name.size()) + 4;
    const bool left = x + 10 + width > kWidth;  // no room on the right
    const double begin = left ? x - 10 - width : x + 10;
    double best = y;
    for (int i = 0; i < 60; i++) {
      best = y + (i % 2 == 0 ? 1 : -1) * ((i + 1) / 2) * 7.0;
      const Box box{begin, best - 7, begin + width, best + 7};
      const bool inside = box.top > 0 && box.bottom < kHeight - kBottom;
      if (inside &&
          std::none_of(placed_.begin(), placed_.end(), [&](const Box& b) { return b.overlaps(box); }))
        break;
    }
    placed_.push_back({begin, best - 7, begin + width, best + 7});
    std::string out;
    if (std::abs(best - y) > 3)
      out += fmt::format(
          "<line stroke=\"{}\" stroke-width=\"0.7\" x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" "
          "y2=\"{:.1f}\"/>",
          colour, x, y, left ? x - 8 : x + 8, best);
    return out + text_at(left ? x - 10 : x + 10, best + 4, left ? "end" : "start", name);
  }
  /// A mark, which labels may not cover.
  void mark(double x, double y) { placed_.push_back({x - 4, y - 4, x + 4, y + 4}); }

 private:
  std::vector<Box> placed_;
};

const char* dash(size_t i) {
  constexpr const char* kDashes[] = {"", " stroke-dasharray=\"6 3\"", " stroke-dasharray=\"2 3\""};
  return kDashes[i / 8 % 3];
}

std::string legend(const std::vector<Series>& series) {
  std::string out = "<ul class=\"legend\">";
  for (size_t i = 0; i < series.size(); i++) {
    const size_t colour = series[i].colour < 0 ? i : static_cast<size_t>(series[i].colour);
    out += fmt::format(
        "<li><svg width=\"26\" height=\"8\" aria-hidden=\"true\"><line x1=\"1\" x2=\"25\" y1=\"4\" y2=\"4\" "
        "stroke=\"{}\" stroke-width=\"2.5\"{}/></svg> {}</li>",
        series_colour(colour), dash(colour), escape_html(series[i].name));
  }
  return out + "</ul>\n";
}

}  // namespace

std::string escape_html(std::string_view text) {
  std::string out;
  for (const char c : text) switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  return out;
}

std::string readable(double x) {
  if (!std::isfinite(x)) return "–";
  const double size = std::abs(x);
  if (size >= 1e6 || (size >= 1000 && x == std::floor(x))) {
    std::string digits = fmt::format("{:.0f}", size);
    for (int at = static_cast<int>(digits.size()) - 3; at > 0; at -= 3)
      digits.insert(static_cast<size_t>(at), 1, ',');
    return (x < 0 ? "-" : "") + digits;
  }
  if (size > 0 && size < 1e-4) return fmt::format("{:.3g}", x);
  return fmt::format("{:.4g}", x);
}

const char* series_colour(size_t i) {
  constexpr const char* kColours[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                      "#e69f00", "#56b4e9", "#8b6fd1", "#7f7f7f"};
  return kColours[i % 8];
}

std::string xy_plot(const Axes& axes, const std::vector<Series>& series) {
  Axis x(axes.x, kLeft, kWidth - kRight), y(axes.y, kHeight - kBottom, kTop);
  const auto shown = [&](const std::pair<double, double>& p) {
    return x.can_show(p.first) && y.can_show(p.second);
  };
  for (const Series& s : series)
    for (const auto& p : s.points)
      if (shown(p)) x.include(p.first), y.include(p.second);
  if (x.empty()) return "";
  x.round_out(), y.round_out();

  std::string marks;
  Labels labels;
  for (const Series& s : series)
    if (s.draw == Draw::LabelledMarks)
      for (const auto& p : s.points)
        if (shown(p)) labels.mark(x.pixel(p.first), y.pixel(p.second));
  bool named = true;
  for (size_t i = 0; i < series.size(); i++) {
    const Series& s = series[i];
    const size_t index = s.colour < 0 ? i : static_cast<size_t>(s.colour);
    const char* colour = series_colour(index);
    std::string path;
    for (const auto& p : s.points) {
      if (!shown(p)) continue;
      const double px = x.pixel(p.first), py = y.pixel(p.second);
      if (s.draw == Draw::Line) {
        path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", px, py);
      }
      if (s.draw != Draw::Line || s.points.size() <= 64)
        marks += fmt::format(
            "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\" fill=\"{}\"><title>{}: {}, {}</title></circle>", px,
            py, s.draw == Draw::Line ? 2.2 : 4.5, colour, escape_html(s.name), readable(p.first),
            readable(p.second));
      if (s.draw == Draw::LabelledMarks) marks += labels.place(px, py, s.name, colour);
    }
    if (!path.empty())
      marks += fmt::format("<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.8\"{}/>\n", path,
                           colour, dash(index));
    named &= s.draw == Draw::LabelledMarks || s.name.empty();
  }
  return fmt::format("<figure><svg class=\"plot\" viewBox=\"0 0 {} {}\" role=\"img\">\n", kWidth, kHeight) +
         frame(axes, x, y) + marks + "</svg>\n" + (named ? "" : legend(series)) + "</figure>\n";
}

std::string heat_map(const HeatMap& map) {
  const size_t n_rows = map.rows.size(), n_columns = map.columns.size();
  if (n_rows == 0 || n_columns == 0 || map.values.size() != n_rows * n_columns) return "";
  size_t longest = 1;
  for (const std::string& r : map.rows) longest = std::max(longest, r.size());
  const double left = 26 + 7.2 * static_cast<double>(longest), top = 8, cell_width = 54, cell_height = 22;
  const double width = left + cell_width * static_cast<double>(n_columns) + 8,
               grid_bottom = top + cell_height * static_cast<double>(n_rows), height = grid_bottom + 40;
  std::string out = fmt::format(
      "<svg class=\"map\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
      "role=\"img\">\n",
      width, height);
  for (size_t r = 0; r < n_rows; r++) {
    const double y = top + cell_height * static_cast<double>(r);
    out += text_at(left - 6, y + 15, "end", map.rows[r]);
    for (size_t c = 0; c < n_columns; c++) {
      const double v = map.values[r * n_columns + c], x = left + cell_width * static_cast<double>(c);
      if (!std::isfinite(v)) continue;
      const double share = map.full > 0 ? std::clamp(v / map.full, 0.0, 1.0) : 0;
      const std::string shown = map.percent ? fmt::format("{:.0f}", 100 * v) : readable(v);
      out += fmt::format(
          "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"#0072b2\" "
          "fill-opacity=\"{:.3f}\" "
          "class=\"cell\"><title>{}, {}: {}</title></rect>",
          x + 1, y + 1, cell_width - 2, cell_height - 2, 0.04 + 0.66 * share, escape_html(map.rows[r]),
          escape_html(map.columns[c]), shown);
      out += text_at(x + cell_width / 2, y + 15, "middle", shown);
    }
    out += "\n";
  }
  for (size_t c = 0; c < n_columns; c++)
    out += text_at(left + cell_width * (static_cast<double>(c) + 0.5), grid_bottom + 16, "middle",
                   map.columns[c]);
  out += text_at(left + cell_width * static_cast<double>(n_columns) / 2, grid_bottom + 33, "middle",
                 map.column_label);
  const double middle = (top + grid_bottom) / 2;
  out += text_at(12, middle, "middle", map.row_label,
                 fmt::format(" transform=\"rotate(-90 12 {:.1f})\"", middle).c_str());
  return out + "</svg>\n";
}

}  // namespace kv2
