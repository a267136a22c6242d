// SPDX-License-Identifier: Apache-2.0
// Cases of every op: inputs, how to run them on a backend, what the result may differ from the reference,
// bytes and FLOPs. The same list tests every backend and drives the bench. Inputs are random with a mean,
// sizes are odd on purpose, and page memory that an op must not read holds NaN.
//
// An OpCase compares one call with the reference backend; an InvarianceCase computes one result in several
// ways (alone, in chunks, in a batch) whose bits must agree on one backend and between its thread counts.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "ops/backend.h"

namespace kv2 {

/// What an op wrote, in host memory.
struct OpOutput {
  int row_width = 1;             // values are compared row by row, relative to that row's norm
  std::vector<float> values;     // [n, row_width]
  std::vector<std::byte> bytes;  // compared exactly
};

/// A case's inputs on one backend. run() may be repeated; output() waits and downloads. Frees its memory when
/// dropped.
struct OpRun {
  std::function<void()> run;
  std::function<OpOutput()> output;
};

struct OpCase {
  std::string op;    // "linear"
  std::string name;  // "rows=17 576x192 bias accumulate"
  double bound =
      0;  // relative error of a row against the reference of the backend's precision; 0: the same bits
  /// Relative error of a row of a bf16 backend against the f32 reference; 0: not compared. Only linears round
  /// inputs.
  double bf16_bound = 0;
  bool other_format = false;    // packed pages in another format than int2, which only some backends have
  double bytes = 0, flops = 0;  // least memory traffic and arithmetic of one run
  std::function<OpRun(Backend&)> prepare;
};

/// embed, rms_norm, linear, rope, transform, append, demote, attend, swiglu.
const std::vector<std::string>& op_names();
/// All cases of one op.
std::vector<OpCase> op_cases(std::string_view op);

/// The reference's results, computed once per case and precision.
class Oracle {
 public:
  const OpOutput& expected(const OpCase& c, LinearPrecision precision);

 private:
  std::map<std::string, OpOutput> known_;
};

/// Runs the case on the backend. "" when it agrees, else one line that says where it does not. `worst`, if
/// given, becomes the larger of itself and error ÷ bound.
std::string check_case(const OpCase& c, Backend& backend, Oracle& oracle, double* worst);

/// "" or one line. bound 0 compares bits; else NaN must stand at the same places and every row's error must
/// be within bound·‖row of want‖.
std::string compare_outputs(const OpOutput& got, const OpOutput& want, double bound, double* worst);

struct InvarianceCase {
  struct Way {
    std::string name;  // "chunks of 7"
    std::function<OpOutput(Backend&)> compute;
  };
  std::string op, name;
  bool other_format = false;  // as in OpCase
  std::vector<Way> ways;
};

/// linear, attend, append (with demote). `largest_rows` bounds the batch of a linear: 513 for a real backend.
std::vector<InvarianceCase> invariance_cases(std::string_view op, int largest_rows);

/// All ways on all backends (one kind, several thread counts) give the bits of the first way on the first
/// backend.
std::string check_invariance(const InvarianceCase& c, const std::vector<Backend*>& backends);

}  // namespace kv2
