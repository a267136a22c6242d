// SPDX-License-Identifier: Apache-2.0
// The byte dot product's loop of limits.cpp, included inside a target's namespace (see vnni.h).
#include "cpu/dot-inl.h"

HWY_ATTR int64_t SpinInt8(int64_t rounds, int32_t* sink) {
  constexpr int kSums = 12;
  const Ints i;
  IntVec sums[kSums];
  for (int s = 0; s < kSums; s++) sums[s] = hn::Set(i, s);
  auto codes = hn::Set(Ints8(), static_cast<uint8_t>(*sink & 3));
  auto x = hn::Set(i, *sink);
  for (int64_t r = 0; r < rounds; r++)
    for (int s = 0; s < kSums; s++) sums[s] = dot4(sums[s], codes, x);
  for (int s = 1; s < kSums; s++) sums[0] = hn::Add(sums[0], sums[s]);
  *sink = hn::GetLane(hn::SumOfLanes(i, sums[0]));
  return rounds * kSums * static_cast<int64_t>(kLanes) * 4;
}
