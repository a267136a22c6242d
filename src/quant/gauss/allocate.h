// SPDX-License-Identifier: Apache-2.0
// Bits per channel for levels of a Gaussian: a vector's bits go where they take away most of the squared
// error.
#pragma once

#include <span>
#include <vector>

namespace kv2::gauss {

/// Squared error of the best levels of 0 to 4 bits for a Gaussian of spread 1.
inline constexpr float kError[] = {1.0f, 0.363380f, 0.117482f, 0.034548f, 0.009501f};

/// energies [d] mean squares of channels; bits_each·d bits in all, 1 to 4 for each channel. One bit at a time
/// to the channel that gains most; of equal ones the first.
std::vector<int> allocate_bits(std::span<const float> energies, int bits_each);

/// What the codec RopeBlocks reads of one KV head: bits [d], then spreads [d] of the channels, their mean
/// square 1.
std::vector<float> rope_block_tables(std::span<const float> energies, int bits_each);

}  // namespace kv2::gauss
