// SPDX-License-Identifier: Apache-2.0
// A head page's private order (fragment.h) against the canonical one, on the host.
#pragma once

#include <cstddef>

#include "cuda/fragment.h"
#include "quant/page_layout.h"

namespace kv2::cuda {

void full_to_canonical(const std::byte* own, int head_dim, std::byte* canonical);
void full_from_canonical(const std::byte* canonical, int head_dim, std::byte* own);
void packed_to_canonical(const std::byte* own, const Int2Layout& layout, std::byte* canonical);
void packed_from_canonical(const std::byte* canonical, const Int2Layout& layout, std::byte* own);

}  // namespace kv2::cuda
