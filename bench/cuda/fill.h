// SPDX-License-Identifier: Apache-2.0
// Pages full of plausible values, and a kernel that does nothing but read: what the benches need on the
// device.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kv2::bench {

/// Codes of any bits; scales 0.3 to 0.9, offsets -1.2 to 0: a mean that is not zero.
void fill_packed(std::byte* pages, size_t words, int page_words, int code_words);
/// Pages of keys per channel, canonical: `norm_words` norms of 0.5 to 1.5, then heads as above.
void fill_channels(std::byte* pages, size_t words, int page_words, int norm_words, int head_words,
                   int code_words);
/// bf16 of -0.7 to 1.3.
void fill_full(std::byte* pages, size_t n_values);
void read_all(const std::byte* x, size_t bytes, uint32_t* out, int n_blocks);
void do_nothing();

}  // namespace kv2::bench
