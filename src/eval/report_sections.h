// SPDX-License-Identifier: Apache-2.0
// The parts of the report, each "" where its judges gave no line.
#pragma once

#include <string>

#include "eval/report_data.h"

namespace kv2 {

std::string methods_section(const ReportData& data);     // table, winners, Pareto front, KL by position
std::string retrieval_section(const ReportData& data);   // needle maps, ruler table
std::string generation_section(const ReportData& data);  // long free-running texts
std::string attention_section(const ReportData& data);   // errors by layer and head
std::string norms_section(const ReportData& data);       // token norms, stages of the omni recipe
std::string runs_section(const ReportData& data);        // commands, versions, hashes

}  // namespace kv2
