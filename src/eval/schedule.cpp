// SPDX-License-Identifier: Apache-2.0
#include "eval/schedule.h"

#include <algorithm>

#include "base/check.h"

namespace kv2 {
namespace {

constexpr const char* kOwn = "paper";
constexpr PrefillPolicy kExact = PrefillPolicy::Exact, kWindowed = PrefillPolicy::Windowed;

// A window of W pages keeps 64·W to 64·W + 63 recent tokens, the query's own page among them. Where a paper's
// number is none of these, the smallest window is taken that keeps as many in the mean: no method loses by
// it. Sinks are rounded up to a page.
const std::vector<Schedule> kSchedules = {
    {"quarot2", kWindowed, 0, 0, "prompts read codes, no token is spared"},
    {"oscar2", kExact, 64, 256, "prompts read bf16; 64 sinks, 256 to 263 recent"},
    {"oscar2-lloyd", kExact, 64, 256, "prompts read bf16; 64 sinks, 256 to 263 recent"},
    {"kivi2", kExact, 0, 128, "prompts read bf16; 0 to 127 recent keys, 128 recent values"},
    {"omni2", kExact, 0, 128, "prompts read bf16; 0 to 255 recent, packed together"},
    {"ott2", kExact, 0, 128, "KIVI's, and a pool of outlier tokens"},
    {"kitty2", kExact, 64, 128, "prompts read bf16; 32 sinks, 0 to 127 recent keys, 128 recent values"},
    {"rotatekv2", kWindowed, 64, 0, "prompts read codes; 20 tokens found by their activations are spared"},
    {"gtq2", kExact, 0, 0, "TurboQuant's"},
    {"tq2", kExact, 0, 0, "generated tokens are coded, too; prompts read bf16 in known ports"},
    {"tq3", kExact, 0, 0, "tq2's"},
    {"tq4", kExact, 0, 0, "tq2's"},
    {"int4", kExact, 0, 0, "coded as it is written; prompts read bf16"},
};

std::string names(const char* before) {
  std::string out = before;
  for (const Schedule& s : kSchedules) out += (out.empty() ? "" : ", ") + std::string(s.method);
  return out;
}

void follow(const Schedule& schedule, CacheSpec& spec) {
  spec.prefill = schedule.prefill;
  spec.sink_tokens = schedule.sink_tokens;
  spec.recent_tokens = schedule.recent_tokens;
}

}  // namespace

const std::vector<Schedule>& schedules() {
  return kSchedules;
}

const Schedule* schedule_of(std::string_view method) {
  const auto at = std::find_if(kSchedules.begin(), kSchedules.end(),
                               [&](const Schedule& s) { return method == s.method; });
  return at == kSchedules.end() ? nullptr : &*at;
}

std::string schedule_names() {
  return names(kOwn);
}

std::vector<CacheSpec> under_schedule(std::vector<CacheSpec> specs, std::string_view name) {
  const Schedule* const of_all = schedule_of(name);
  if (of_all == nullptr && name != kOwn)
    throw_error(ErrorCode::BadArgument, "schedule '{}' is unknown; there are {}", name, schedule_names());
  for (CacheSpec& spec : specs) {
    if (!spec.method.quantized()) continue;
    const Schedule* const own = of_all != nullptr ? of_all : schedule_of(spec.method.name);
    if (own != nullptr) {
      follow(*own, spec);
    } else if (spec.method.name == "kv2") {
      const CacheSpec plain;
      follow({"kv2", plain.prefill, plain.sink_tokens, plain.recent_tokens, ""}, spec);
    } else {
      throw_error(ErrorCode::BadArgument,
                  "{} has no schedule of a paper's; leave it out, or give all methods one by name ({})",
                  spec.method.name, names(""));
    }
  }
  return specs;
}

}  // namespace kv2
