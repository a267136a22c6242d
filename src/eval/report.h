// SPDX-License-Identifier: Apache-2.0
// The report: JSON lines of the judges become one self-contained HTML page: tables, and plots as inline SVG.
// No script, no network, light and dark alike; the same lines give the same page.
#pragma once

#include <string>
#include <vector>

namespace kv2 {

/// JSON lines of `kv2 eval … --json`, any judges in any order.
struct ResultFile {
  std::string name;  // for messages
  std::string text;
};

/// Errors: BadFile naming file and line (no JSON object, a judge nobody knows: lists those there are, a field
/// that is missing or of another type); BadArgument when there is no line at all.
std::string report_html(const std::vector<ResultFile>& files, const std::string& title);

}  // namespace kv2
