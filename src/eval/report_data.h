// SPDX-License-Identifier: Apache-2.0
// The lines of a report, read and checked, by judge.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "eval/report.h"

namespace kv2 {

using Json = nlohmann::ordered_json;

struct ReportData {
  /// By judge: kld, attend, norms, norm-stages, needle, ruler, generate. A line has every field that its
  /// judge must have, of the right type.
  std::map<std::string, std::vector<Json>> lines;

  const std::vector<Json>& of(const std::string& judge) const {
    static const std::vector<Json> none;
    const auto at = lines.find(judge);
    return at == lines.end() ? none : at->second;
  }
};

ReportData read_results(const std::vector<ResultFile>& files);

/// A method as the report calls it: with its windows or policy where these are not the defaults.
std::string method_label(const Json& line);
/// What was judged: model and text of the line's run, "" where it does not say.
std::string subject_of(const Json& line);
/// Values of `key` over lines in order of first appearance.
std::vector<std::string> distinct(const std::vector<Json>& lines, std::string (*key)(const Json&));

}  // namespace kv2
