// SPDX-License-Identifier: Apache-2.0
// The papers' own schedules, for evaluation: what prompts read and which tokens stay in bf16, where kv2 runs
// every method under one rule of visibility. A schedule is a policy and two windows, so it is met as far as
// whole pages meet it (docs/paper-to-code.md); page codecs are the same under all of them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kv2/cache.h"

namespace kv2 {

struct Schedule {
  const char* method;  // that it is named by
  PrefillPolicy prefill;
  int sink_tokens, recent_tokens;
  const char* of_paper;  // what the paper or its code does, which this comes closest to
};

/// Every method that a paper schedules, in the order of methods().
const std::vector<Schedule>& schedules();
/// The schedule of this method's paper; nullptr where it has none.
const Schedule* schedule_of(std::string_view method);

/// The specs under the schedule `name`: "paper" gives each method its own (kv2's own is the rule of
/// visibility with its default windows), a method's name gives all of them that method's. bf16 stays as it
/// is. Errors: BadArgument for an unknown name (lists them) and, of "paper", for a method that no paper
/// schedules.
std::vector<CacheSpec> under_schedule(std::vector<CacheSpec> specs, std::string_view name);

/// "paper, quarot2, oscar2, …"
std::string schedule_names();

}  // namespace kv2
