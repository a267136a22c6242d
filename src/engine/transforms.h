// The transforms, clips and coder tables of a CacheSpec on a model: from nothing (identity, Hadamard) or from
// a Calibration.
#pragma once

#include <span>

#include "cache/fitted_method.h"
#include "kv2/cache.h"
#include "kv2/calibrate.h"
#include "quant/page_layout.h"

namespace kv2 {

/// Throws Mismatch unless the calibration is of a model of this shape.
void require_shape(const Calibration& calibration, const KvShape& shape);
/// Throws BadArgument where none of the methods stores V in a basis of its own that W_o could absorb.
void require_turned_values(std::span<const CacheSpec> specs);
/// Throws BadArgument with the command that makes one when `spec` needs a calibration and there is none.
FittedMethod fit_method(const CacheSpec& spec, const KvShape& shape, const Calibration* calibration);

}  // namespace kv2
