// Every op, scalar and obvious, on host memory with canonical pages: the oracle that backends are tested
// against. Sums run in double precision, results are rounded to float once. Not fast; it can run a small
// model.
#pragma once

#include <memory>

#include "ops/backend.h"

namespace kv2 {

/// precision Bf16 rounds inputs and weights of linear() to bf16 first; Auto means F32 here.
std::unique_ptr<Backend> make_reference_backend(LinearPrecision precision);

}  // namespace kv2
