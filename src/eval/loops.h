// SPDX-License-Identifier: Apache-2.0
// Repetition in a sequence of tokens: loops and distinct n-grams.
#pragma once

#include <cstdint>
#include <span>

namespace kv2 {

inline constexpr int64_t kLongestPeriod = 64;    // tokens; what repeats at a longer one is no loop
inline constexpr int64_t kCollapseTokens = 256;  // of a loop that lasts to the end

/// A run of tokens [begin, begin + length) in which every token from begin + period on equals the one
/// `period` before it, and which holds at least two whole periods. As long as possible; of equally long ones
/// the one with the smallest period, then the first.
struct Loop {
  int64_t begin = 0, length = 0, period = 0;  // length 0: there is none
  bool operator==(const Loop&) const = default;
};

/// The longest loop of a period of at most kLongestPeriod.
Loop longest_loop(std::span<const int32_t> tokens);
/// The longest of the loops that reach the end.
Loop loop_at_end(std::span<const int32_t> tokens);
/// Collapsed: a loop of a period of at most 64 tokens lasts to the end of the text and covers 256 tokens or
/// more.
bool collapsed(std::span<const int32_t> tokens);
/// Stuck: the last 256 tokens hold no more different runs of four tokens than a loop of 64 would. Every
/// collapsed text is; so is one that says the same over and over with mistakes, which a bad cache makes.
bool stuck(std::span<const int32_t> tokens);
/// Different runs of n tokens divided by all runs of n tokens; 1 for a text shorter than that.
double distinct_ratio(std::span<const int32_t> tokens, int n);

}  // namespace kv2
