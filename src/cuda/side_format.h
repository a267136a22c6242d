// SPDX-License-Identifier: Apache-2.0
// Which formats of packed pages the CUDA backend codes and reads, and their PackedSide. Host only.
#pragma once

#include <string>

#include "cuda/packed_side.h"
#include "quant/page_layout.h"

namespace kv2::cuda {

/// "" where this side has kernels, else what it has instead of them.
std::string why_no_kernels(const SideFormat& side);
PackedSide packed_side(const SideFormat& side, const KvShape& shape, size_t begin);

}  // namespace kv2::cuda
