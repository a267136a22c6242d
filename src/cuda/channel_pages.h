// SPDX-License-Identifier: Apache-2.0
// A layer's part of a packed page in the order of channel_order.h against the canonical one, on the host.
#pragma once

#include <cstddef>

#include "quant/page_layout.h"

namespace kv2::cuda {

/// Whether this layer's packed pages are kept in the order of channel_order.h.
bool in_channel_order(const LayerLayout& layer, const KvShape& shape);

/// In place, all KV heads.
void channels_to_canonical(const LayerLayout& layer, const KvShape& shape, std::byte* part);
void channels_from_canonical(const LayerLayout& layer, const KvShape& shape, std::byte* part);

}  // namespace kv2::cuda
