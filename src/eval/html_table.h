// SPDX-License-Identifier: Apache-2.0
// HtmlTable: cells in, escaped HTML out. Names stand left, numbers right.
#pragma once

#include <string>
#include <vector>

#include "eval/svg_plot.h"

namespace kv2 {

class HtmlTable {
 public:
  /// n_names: columns from the first that hold names.
  explicit HtmlTable(const std::vector<std::string>& head, size_t n_names = 1) : n_names_(n_names) {
    out_ = "<div class=\"scroll\"><table><thead>" + cells(head, "th") + "</thead><tbody>\n";
  }
  enum class Emphasis { None, Best };
  void add(const std::vector<std::string>& row, Emphasis emphasis = Emphasis::None) {
    std::string text = cells(row, "td");
    if (emphasis == Emphasis::Best) text.insert(3, " class=\"best\"");
    out_ += text + "\n";
  }
  std::string html() const { return out_ + "</tbody></table></div>\n"; }

 private:
  std::string cells(const std::vector<std::string>& row, const char* tag) const {
    std::string out = "<tr>";
    for (size_t i = 0; i < row.size(); i++)
      out += std::string("<") + tag + (i < n_names_ ? ">" : " class=\"n\">") + escape_html(row[i]) + "</" +
             tag + ">";
    return out + "</tr>";
  }
  size_t n_names_;
  std::string out_;
};

}  // namespace kv2
