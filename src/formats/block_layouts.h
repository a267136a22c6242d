// SPDX-License-Identifier: Apache-2.0
// Block formats of GGUF, byte by byte, and the float that a code stands for. Little endian; d, m and dmin are
// fp16. Blocks are not aligned in the file, so a reader copies one out first.
#pragma once

#include <cstdint>

#include "base/float16.h"

namespace kv2 {

// clang-format off
//
// 32 elements. The low nibble of qs[j] is element j, the high nibble element j + 16.
//
//   Q4_0 | d:2 | qs:16 |                x = d (q - 8)
//   Q4_1 | d:2 | m:2 | qs:16 |          x = d q + m
//   Q5_0 | d:2 | qh:4 | qs:16 |         x = d (q - 16)     bit e of qh is bit 4 of element e
//   Q5_1 | d:2 | m:2 | qh:4 | qs:16 |   x = d q + m        the same
//   Q8_0 | d:2 | qs:32 |                x = d q            int8
//
// clang-format on
struct Q4_0 {
  fp16 d;
  uint8_t qs[16];
};
struct Q4_1 {
  fp16 d, m;
  uint8_t qs[16];
};
struct Q5_0 {
  fp16 d;
  uint8_t qh[4], qs[16];
};
struct Q5_1 {
  fp16 d, m;
  uint8_t qh[4], qs[16];
};
struct Q8_0 {
  fp16 d;
  int8_t qs[32];
};
static_assert(sizeof(Q4_0) == 18 && sizeof(Q4_1) == 20 && sizeof(Q5_0) == 22 && sizeof(Q5_1) == 24);
static_assert(sizeof(Q8_0) == 34);

// clang-format off
//
// 256 elements of 2 or 3 bits: 16 sub-blocks of 16 with a scale each. qs holds four bit planes, twice:
//
//   byte of qs      0 … 31                                32 … 63
//   bits 0-1        elements 0 … 31                       elements 128 … 159
//   bits 2-3        elements 32 … 63                      elements 160 … 191
//   bits 4-5        elements 64 … 95                      elements 192 … 223
//   bits 6-7        elements 96 … 127                     elements 224 … 255
//
//   Q2_K | scales:16 | qs:64 | d:2 | dmin:2 |      x = (d scale) q - (dmin min)
//          low nibble of scales[s]: scale, high nibble: min
//   Q3_K | hmask:32 | qs:64 | scales:12 | d:2 |    x = (d (scale - 32)) (q - 4 or 0)
//          4 where bit (element / 32) of hmask[element % 32] is clear; scales of 6 bits: low four in the nibbles
//          of bytes 0 … 7, high two in bytes 8 … 11
//
// clang-format on
struct Q2_K {
  uint8_t scales[16], qs[64];
  fp16 d, dmin;
};
struct Q3_K {
  uint8_t hmask[32], qs[64], scales[12];
  fp16 d;
};
static_assert(sizeof(Q2_K) == 84 && sizeof(Q3_K) == 110);

// clang-format off
//
// 256 elements of 4 or 5 bits: 8 sub-blocks of 32, each with a scale and a min of 6 bits (layout at scale_min in
// dequantize.cpp). Sub-blocks 2c and 2c + 1 are the low and the high nibbles of qs[32c … 32c + 31].
//
//   Q4_K | d:2 | dmin:2 | scales:12 | qs:128 |            x = (d scale) q - (dmin min)
//   Q5_K | d:2 | dmin:2 | scales:12 | qh:32 | qs:128 |    the same; bit s of qh[l] is bit 4 of element l of sub-block s
//
// 256 elements of 6 bits: 16 sub-blocks of 16 with an int8 scale each. A half has 64 bytes of ql and 32 of qh:
//
//   element in the half     0 … 31          32 … 63          64 … 95          96 … 127
//   low four bits           ql[0…31] low    ql[32…63] low    ql[0…31] high    ql[32…63] high
//   high two bits, qh       bits 0-1        bits 2-3         bits 4-5         bits 6-7
//
//   Q6_K | ql:128 | qh:64 | scales:16 | d:2 |             x = (d scale) (q - 32)
//
// clang-format on
struct Q4_K {
  fp16 d, dmin;
  uint8_t scales[12], qs[128];
};
struct Q5_K {
  fp16 d, dmin;
  uint8_t scales[12], qh[32], qs[128];
};
struct Q6_K {
  uint8_t ql[128], qh[64];
  int8_t scales[16];
  fp16 d;
};
static_assert(sizeof(Q4_K) == 144 && sizeof(Q5_K) == 176 && sizeof(Q6_K) == 210);

}  // namespace kv2
