// SPDX-License-Identifier: Apache-2.0
// The codec head_groups against a model of RotateKV's recipe in double precision.
#include <algorithm>

#include "quant/rotation.h"
#include "quant/test_side.h"

namespace kv2 {
namespace {

using testing::half;
using testing::TestSide;

TEST(HeadGroups, IsItsModelInDoublePrecision) {
  struct Case {
    int heads, together, d, bits, group;
  };
  for (const Case& c : {Case{3, 3, 64, 2, 0}, Case{8, 4, 32, 2, 0}, Case{4, 4, 32, 3, 16},
                        Case{5, 1, 64, 4, 32}, Case{2, 2, 80, 2, 40}, Case{6, 3, 64, 1, 0}}) {
    const TestSide side(c.heads, c.d, 11 + static_cast<unsigned>(c.heads));
    const SideFormat f = side.resolved({.codec = CodecId::HeadGroups, .bits = c.bits, .group = c.group});
    EXPECT_EQ(8.0 * page_codec(f.codec).bytes(f, side.shape) / (c.heads * 64.0 * c.d),
              c.bits + 32.0 / f.group);
    const std::vector<float> got = side.decode(f, side.encode(f));
    const int width = c.together * c.d, top = (1 << c.bits) - 1;
    const std::vector<double> h = hadamard(width);
    int other = 0;
    for (int first = 0; first < c.heads; first += c.together)
      for (int t = 0; t < kPageTokens; t++) {
        std::vector<double> x(width), y(width, 0.0), back(width, 0.0);
        for (int i = 0; i < width; i++) x[i] = side.at(first + i / c.d, t, i % c.d);
        for (int i = 0; i < width; i++)
          for (int j = 0; j < width; j++) y[j] += x[i] * h[static_cast<size_t>(i) * width + j];
        double step = 0;
        for (int g = 0; g < width / f.group; g++) {
          const auto begin = y.begin() + g * f.group, end = begin + f.group;
          const double narrow = c.bits <= 2 ? 0.8 : 1.0;
          const double low = narrow * *std::min_element(begin, end),
                       high = narrow * *std::max_element(begin, end);
          const double scale = half((high - low) / top), offset = half(std::floor(low / scale + 0.5) * scale);
          for (auto v = begin; v != end; ++v) {
            const double clipped = std::clamp(*v, low, high);
            *v = scale * std::clamp(std::floor((clipped - offset) / scale + 0.5), 0.0, double(top)) + offset;
          }
          step = std::max(step, scale);
        }
        double error = 0, norm = 0;
        for (int i = 0; i < width; i++) {
          for (int j = 0; j < width; j++) back[i] += y[j] * h[static_cast<size_t>(i) * width + j];
          const double e = got[side.index(first + i / c.d, t, i % c.d)] - back[i];
          error += e * e, norm += x[i] * x[i];
        }
        // A code or an offset on the border of two may fall the other way in fp32.
        if (error > 1e-8 * norm) other++;
        EXPECT_LE(error, 2.5 * step * step * width);
      }
    EXPECT_LE(other, 4) << "tokens with a code on a border";
  }
}

}  // namespace
}  // namespace kv2
