// SPDX-License-Identifier: Apache-2.0
// Comparison of a backend with the reference, and the index of all cases. The cases themselves are in cases/.
#include "ops/op_case.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "ops/cases/inputs.h"
#include "ops/reference/reference.h"

namespace kv2 {
namespace {

struct OpEntry {
  std::string name;
  std::vector<OpCase> (*cases)();
};

const std::vector<OpEntry>& entries() {
  static const std::vector<OpEntry> all = {
      {"embed", cases::embed_cases},   {"rms_norm", cases::rms_norm_cases},   {"linear", cases::linear_cases},
      {"rope", cases::rope_cases},     {"transform", cases::transform_cases}, {"append", cases::append_cases},
      {"demote", cases::demote_cases}, {"attend", cases::attend_cases},       {"swiglu", cases::swiglu_cases},
  };
  return all;
}

std::string compare_bytes(const OpOutput& got, const OpOutput& want) {
  if (got.bytes.size() != want.bytes.size())
    return fmt::format("{} bytes instead of {}", got.bytes.size(), want.bytes.size());
  const auto at = std::mismatch(got.bytes.begin(), got.bytes.end(), want.bytes.begin());
  if (at.first == got.bytes.end()) return {};
  size_t n = 0;
  for (size_t i = 0; i < got.bytes.size(); i++) n += got.bytes[i] != want.bytes[i];
  return fmt::format("{} of {} bytes differ, the first at {}: {:02x} instead of {:02x}", n, got.bytes.size(),
                     at.first - got.bytes.begin(), static_cast<int>(*at.first), static_cast<int>(*at.second));
}

/// ‖got − want‖ ÷ ‖want‖ of one row, infinite where NaN or infinity do not stand at the same places.
double row_error(const float* got, const float* want, int n) {
  double error = 0, norm = 0;
  for (int i = 0; i < n; i++) {
    if (std::isnan(want[i]) != std::isnan(got[i])) return HUGE_VAL;
    if (std::isnan(want[i]) || got[i] == want[i]) {
      if (std::isfinite(want[i])) norm += static_cast<double>(want[i]) * want[i];
      continue;
    }
    if (!std::isfinite(want[i]) || !std::isfinite(got[i])) return HUGE_VAL;
    const double difference = static_cast<double>(got[i]) - want[i];
    error += difference * difference;
    norm += static_cast<double>(want[i]) * want[i];
  }
  return error == 0 ? 0 : std::sqrt(error / norm);  // a row of zeros must be met exactly
}

std::string compare_bits(const OpOutput& got, const OpOutput& want) {
  size_t n = 0, first = 0;
  for (size_t i = want.values.size(); i-- > 0;) {
    if (std::memcmp(&got.values[i], &want.values[i], sizeof(float)) == 0) continue;
    if (std::isnan(got.values[i]) && std::isnan(want.values[i]))
      continue;  // a NaN's payload is nobody's promise
    n++;
    first = i;
  }
  if (n == 0) return {};
  return fmt::format(
      "{} of {} values differ in bits, the first in row {} column {}: {:.9g} instead of {:.9g}", n,
      want.values.size(), first / want.row_width, first % want.row_width, got.values[first],
      want.values[first]);
}

}  // namespace

std::string compare_outputs(const OpOutput& got, const OpOutput& want, double bound, double* worst) {
  if (std::string bytes = compare_bytes(got, want); !bytes.empty()) return bytes;
  if (got.values.size() != want.values.size())
    return fmt::format("{} values instead of {}", got.values.size(), want.values.size());
  if (bound == 0) return compare_bits(got, want);
  const size_t width = want.row_width, n_rows = want.values.size() / width;
  size_t worst_row = 0;
  double largest = 0;
  for (size_t r = 0; r < n_rows; r++) {
    const double error = row_error(&got.values[r * width], &want.values[r * width], want.row_width);
    if (error > largest || !(error == error)) {
      largest = error;
      worst_row = r;
    }
  }
  if (worst) *worst = std::max(*worst, largest / bound);
  if (largest <= bound) return {};
  const size_t at = worst_row * width;
  return fmt::format("row {} is off by {:.3g} of its norm, bound {:.3g} (begins {:.9g}, expected {:.9g})",
                     worst_row, largest, bound, got.values[at], want.values[at]);
}

const std::vector<std::string>& op_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> out;
    for (const OpEntry& e : entries()) out.push_back(e.name);
    return out;
  }();
  return names;
}

std::vector<OpCase> op_cases(std::string_view op) {
  for (const OpEntry& e : entries())
    if (e.name == op) return e.cases();
  throw_error(ErrorCode::BadArgument, "no op is called {}; the ops are {}", op, fmt::join(op_names(), ", "));
}

const OpOutput& Oracle::expected(const OpCase& c, LinearPrecision precision) {
  const std::string key =
      fmt::format("{} {} {}", c.op, c.name, precision == LinearPrecision::Bf16 ? "bf16" : "f32");
  if (const auto at = known_.find(key); at != known_.end()) return at->second;
  const auto reference = make_reference_backend(precision);
  OpRun run = c.prepare(*reference);
  run.run();
  return known_.emplace(key, run.output()).first->second;
}

std::string check_case(const OpCase& c, Backend& backend, Oracle& oracle, double* worst) {
  OpRun run = c.prepare(backend);
  run.run();
  const OpOutput got = run.output();
  const bool bf16 = backend.linear_precision() == "bf16";
  const auto precision = bf16 && c.bf16_bound > 0 ? LinearPrecision::Bf16 : LinearPrecision::F32;
  std::string failure = compare_outputs(got, oracle.expected(c, precision), c.bound, worst);
  if (failure.empty() && precision == LinearPrecision::Bf16)
    failure = compare_outputs(got, oracle.expected(c, LinearPrecision::F32), c.bf16_bound, nullptr);
  return failure.empty() ? failure : fmt::format("{} [{}]: {}", c.op, c.name, failure);
}

std::vector<InvarianceCase> invariance_cases(std::string_view op, int largest_rows) {
  if (op == "linear") return cases::linear_invariance(largest_rows);
  if (op == "attend") return cases::attend_invariance();
  if (op == "append") return cases::append_invariance();
  throw_error(ErrorCode::BadArgument, "no invariance cases for {}; there are some for linear, attend, append",
              op);
}

std::string check_invariance(const InvarianceCase& c, const std::vector<Backend*>& backends) {
  KV2_CHECK(!backends.empty() && !c.ways.empty());
  const OpOutput want = c.ways.front().compute(*backends.front());
  for (size_t b = 0; b < backends.size(); b++) {
    for (size_t w = b == 0 ? 1 : 0; w < c.ways.size(); w++) {
      const std::string failure = compare_outputs(c.ways[w].compute(*backends[b]), want, 0, nullptr);
      if (!failure.empty())
        return fmt::format("{} [{}]: {} on backend {} against {}: {}", c.op, c.name, c.ways[w].name, b,
                           c.ways.front().name, failure);
    }
  }
  return {};
}

}  // namespace kv2
