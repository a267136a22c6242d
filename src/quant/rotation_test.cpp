// SPDX-License-Identifier: Apache-2.0
// Hadamard matrices exactly, in integers; calibrated rotations by their properties in double precision:
// orthogonal, flat importance, the paper's permutation, the same bits for the same covariance, sound on
// degenerate input.
#include "quant/rotation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "kv2/error.h"
#include "quant/int2/int2.h"

namespace kv2 {
namespace {

constexpr RotationRecipe kRecipes[] = {RotationRecipe::U, RotationRecipe::UH, RotationRecipe::UHP};

/// Mean of x'x over n rows with a strong mean and a spectrum over several orders of magnitude.
std::vector<float> random_covariance(int d, int n, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<double> normal;
  std::vector<double> mix(static_cast<size_t>(d) * d), sum(mix.size(), 0.0), mean(d), row(d);
  for (double& m : mix) m = normal(rng);
  for (double& m : mean) m = 2 * normal(rng);
  for (int t = 0; t < n; ++t) {
    row = mean;
    for (int k = 0; k < d; ++k) {
      const double latent = normal(rng) * std::exp(-0.05 * k);
      for (int i = 0; i < d; ++i) row[i] += latent * mix[k * d + i];
    }
    for (int i = 0; i < d; ++i) {
      for (int j = 0; j < d; ++j) sum[i * d + j] += row[i] * row[j] / n;
    }
  }
  return {sum.begin(), sum.end()};
}

double orthogonality_error(const std::vector<double>& r, int d) {
  double worst = 0;
  for (int i = 0; i < d; ++i) {
    for (int j = 0; j < d; ++j) {
      double dot = 0;
      for (int k = 0; k < d; ++k) dot += r[k * d + i] * r[k * d + j];
      worst = std::max(worst, std::fabs(dot - (i == j)));
    }
  }
  return worst;
}

/// diag(Rᵀ C R).
std::vector<double> importance(const std::vector<double>& r, const std::vector<float>& c, int d) {
  std::vector<double> diagonal(d, 0.0);
  for (int j = 0; j < d; ++j) {
    for (int i = 0; i < d; ++i) {
      double row = 0;
      for (int k = 0; k < d; ++k)
        row += 0.5 * (static_cast<double>(c[i * d + k]) + c[k * d + i]) * r[k * d + j];
      diagonal[j] += r[i * d + j] * row;
    }
  }
  return diagonal;
}

double trace(const std::vector<float>& c, int d) {
  double sum = 0;
  for (int i = 0; i < d; ++i) sum += c[i * d + i];
  return sum;
}

TEST(Hadamard, RowsAreOrthogonalExactly) {
  for (int n :
       {1, 2, 4, 8, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512}) {
    ASSERT_TRUE(has_hadamard(n)) << n;
    const std::vector<int8_t> h = hadamard_signs(n);
    ASSERT_EQ(h.size(), static_cast<size_t>(n) * n);
    for (int8_t x : h) ASSERT_TRUE(x == 1 || x == -1) << n;
    for (int i = 0; i < n; ++i) {
      for (int j = 0; j < n; ++j) {
        int dot = 0;
        for (int k = 0; k < n; ++k) dot += h[i * n + k] * h[j * n + k];
        ASSERT_EQ(dot, i == j ? n : 0) << n << " rows " << i << " " << j;
      }
    }
  }
}

TEST(Hadamard, PowersOfTwoAreSylvesters) {
  for (int n : {1, 2, 8, 64, 128}) {
    const std::vector<int8_t> h = hadamard_signs(n);
    for (int i = 0; i < n; ++i) {
      for (int j = 0; j < n; ++j) {
        ASSERT_EQ(h[i * n + j], __builtin_popcount(static_cast<unsigned>(i & j)) % 2 ? -1 : 1) << n;
      }
    }
  }
}

TEST(Hadamard, OtherOrdersAreRefusedWithTheList) {
  for (int n : {-4, 0, 3, 6, 10, 14, 36, 44, 60, 72, 100, 1 << 20}) {
    EXPECT_FALSE(has_hadamard(n)) << n;
    try {
      hadamard(n);
      ADD_FAILURE() << n;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::Unsupported);
      EXPECT_NE(std::string(error.what()).find("28·2^k"), std::string::npos) << error.what();
    }
  }
}

TEST(Hadamard, TransformInvertsAndIsTheSameOnEveryHead) {
  for (int d : {64, 80, 96, 112, 128, 192, 256}) {
    const Transform t = hadamard_transform(3, d);
    ASSERT_EQ(t.encode.size(), static_cast<size_t>(3) * d * d);
    EXPECT_LT(inverse_error(t), 1e-5) << d;
    EXPECT_FALSE(t.identity());
    EXPECT_TRUE(std::equal(t.encode.begin(), t.encode.begin() + d * d, t.encode.begin() + 2 * d * d));
  }
  EXPECT_TRUE(identity_transform(3, 64).identity());
  EXPECT_EQ(inverse_error(identity_transform(3, 64)), 0);
}

TEST(Rotation, PermutationIsThePapersWorkedExample) {
  EXPECT_EQ(bit_reversal_permutation(8), (std::vector<int>{7, 3, 5, 1, 6, 2, 4, 0}));
  EXPECT_EQ(bit_reversal_permutation(1), std::vector<int>{0});
  for (int n : {64, 128, 256}) {
    std::vector<int> sorted = bit_reversal_permutation(n);
    std::sort(sorted.begin(), sorted.end());
    for (int i = 0; i < n; ++i) ASSERT_EQ(sorted[i], i);
  }
  EXPECT_THROW(bit_reversal_permutation(96), Error);
  EXPECT_THROW(bit_reversal_permutation(0), Error);
}

TEST(Rotation, ColumnsOfUDiagonaliseInAscendingOrder) {
  const int d = 64;
  const std::vector<float> c = random_covariance(d, 300, 2);
  const std::vector<double> u = rotation_from_covariance(c, d, RotationRecipe::U);
  EXPECT_LT(orthogonality_error(u, d), 1e-12);
  const std::vector<double> eigenvalues = importance(u, c, d);
  EXPECT_TRUE(std::is_sorted(eigenvalues.begin(), eigenvalues.end()));
  double off_diagonal = 0;
  for (int a = 0; a < d; ++a) {
    for (int b = 0; b < a; ++b) {
      double sum = 0;
      for (int i = 0; i < d; ++i) {
        for (int j = 0; j < d; ++j) sum += u[i * d + a] * c[i * d + j] * u[j * d + b];
      }
      off_diagonal = std::max(off_diagonal, std::fabs(sum));
    }
  }
  EXPECT_LT(off_diagonal, 1e-5 * trace(c, d));
  for (int j = 0; j < d; ++j) {  // the sign convention
    double largest = 0;
    for (int i = 0; i < d; ++i)
      largest = std::fabs(u[i * d + j]) > std::fabs(largest) ? u[i * d + j] : largest;
    EXPECT_GT(largest, 0);
  }
}

TEST(Rotation, HadamardMakesImportanceFlat) {
  for (int d : {64, 80, 96, 112, 128}) {
    const std::vector<float> c = random_covariance(d, 200, static_cast<uint32_t>(d));
    const double mean = trace(c, d) / d;
    for (RotationRecipe recipe : {RotationRecipe::UH, RotationRecipe::UHP}) {
      const std::vector<double> r = rotation_from_covariance(c, d, recipe);
      EXPECT_LT(orthogonality_error(r, d), 1e-12) << d;
      for (double x : importance(r, c, d)) ASSERT_NEAR(x, mean, 1e-9 * mean) << d;
    }
    const std::vector<double> u = importance(rotation_from_covariance(c, d, RotationRecipe::U), c, d);
    EXPECT_GT(*std::max_element(u.begin(), u.end()), 5 * mean)
        << "the test's covariance is not flat by itself";
  }
}

TEST(Rotation, PermutesTheColumnsOfUH) {
  const int d = 128;
  const std::vector<float> c = random_covariance(d, 150, 9);
  const std::vector<double> uh = rotation_from_covariance(c, d, RotationRecipe::UH);
  const std::vector<double> uhp = rotation_from_covariance(c, d, RotationRecipe::UHP);
  const std::vector<int> perm = bit_reversal_permutation(d);
  for (int i = 0; i < d; ++i) {
    for (int j = 0; j < d; ++j) ASSERT_EQ(uhp[i * d + j], uh[i * d + perm[j]]);
  }
  // With group = d/2 the first group is the odd columns of U·H, the second the even ones.
  for (int j = 0; j < d; ++j) EXPECT_EQ(perm[j] % 2, j < d / 2 ? 1 : 0);
}

// One group over the whole head: P moves codes about and changes nothing else.
TEST(Rotation, PermutationIsANoOpWhenTheGroupIsTheHead) {
  const int d = 128;
  std::mt19937 rng(4);
  std::normal_distribution<float> normal(0.7f, 2.0f);
  const std::vector<int> perm = bit_reversal_permutation(d);
  const Coder coder{.group = d, .clip_index = clip_index(0.92, d)};
  for (int repeat = 0; repeat < 50; ++repeat) {
    std::vector<bf16> x(d), permuted(d);
    for (bf16& v : x) v = to_bf16(normal(rng));
    for (int j = 0; j < d; ++j) permuted[j] = x[perm[j]];
    std::vector<uint8_t> codes(d), permuted_codes(d);
    fp16 scale, offset, permuted_scale, permuted_offset;
    int2::encode_vector(x.data(), d, coder, codes.data(), &scale, &offset);
    int2::encode_vector(permuted.data(), d, coder, permuted_codes.data(), &permuted_scale, &permuted_offset);
    EXPECT_EQ(scale.bits, permuted_scale.bits);
    EXPECT_EQ(offset.bits, permuted_offset.bits);
    for (int j = 0; j < d; ++j) ASSERT_EQ(permuted_codes[j], codes[perm[j]]);
  }
}

TEST(Rotation, SameCovarianceGivesTheSameBits) {
  const int d = 64;
  const std::vector<float> one = random_covariance(d, 100, 3);
  std::vector<float> two = one;
  two.insert(two.end(), one.begin(), one.end());
  for (RotationRecipe recipe : kRecipes) {
    const Transform head = calibrated_transform(two, 2, d, recipe, RotationSharing::Head);
    const Transform layer = calibrated_transform(two, 2, d, recipe, RotationSharing::Layer);
    EXPECT_TRUE(std::equal(head.encode.begin(), head.encode.begin() + d * d, head.encode.begin() + d * d));
    EXPECT_EQ(head.encode, layer.encode) << "the mean of equal heads is each of them";
    EXPECT_EQ(head.decode, layer.decode);
    EXPECT_LT(inverse_error(head), 1e-5);
  }
}

TEST(Rotation, HeadsAreTheirOwnUnlessShared) {
  const int d = 64, square = d * d;
  std::vector<float> covariances = random_covariance(d, 100, 5), mean(square);
  const std::vector<float> other = random_covariance(d, 100, 6);
  covariances.insert(covariances.end(), other.begin(), other.end());
  for (int i = 0; i < square; ++i) mean[i] = 0.5f * (covariances[i] + covariances[square + i]);
  const Transform head = calibrated_transform(covariances, 2, d, RotationRecipe::UHP, RotationSharing::Head);
  const Transform layer =
      calibrated_transform(covariances, 2, d, RotationRecipe::UHP, RotationSharing::Layer);
  for (int h = 0; h < 2; ++h) {
    const std::vector<float> own(covariances.begin() + h * square, covariances.begin() + (h + 1) * square);
    const std::vector<double> want = rotation_from_covariance(own, d, RotationRecipe::UHP);
    for (int i = 0; i < square; ++i) ASSERT_EQ(head.encode[h * square + i], static_cast<float>(want[i]));
  }
  EXPECT_TRUE(std::equal(layer.encode.begin(), layer.encode.begin() + square, layer.encode.begin() + square));
  // Flat under the mean of the heads, which is what the shared rotation is fitted to.
  const std::vector<double> r(layer.encode.begin(), layer.encode.begin() + square);
  const double flat = trace(mean, d) / d;
  for (double x : importance(r, mean, d)) EXPECT_NEAR(x, flat, 1e-4 * flat);
}

// A rotation where the exponent is 0; with 1 every stored channel has the same variance after H, and the
// eigenvalues above the floor come out alike.
TEST(Rotation, WhitenedTransforms) {
  const int d = 64;
  const std::vector<float> covariance = random_covariance(d, 100, 8);
  for (RotationRecipe recipe : kRecipes) {
    const Transform zero = whitened_transform(covariance, 1, d, recipe, RotationSharing::Head, 0);
    const Transform plain = calibrated_transform(covariance, 1, d, recipe, RotationSharing::Head);
    for (int i = 0; i < d * d; ++i) ASSERT_NEAR(zero.encode[i], plain.encode[i], 1e-6);
    for (double exponent : {0.5, 1.0}) {
      const Transform t = whitened_transform(covariance, 1, d, recipe, RotationSharing::Layer, exponent);
      EXPECT_LT(inverse_error(t), 1e-5);
      const std::vector<double> encode(t.encode.begin(), t.encode.end());
      const std::vector<double> variance = importance(encode, covariance, d);
      const auto [least, most] = std::minmax_element(variance.begin(), variance.end());
      if (recipe != RotationRecipe::U) {
        EXPECT_LT(*most, *least * 1.001);
      }
      if (exponent == 1) {
        EXPECT_LT(*most, trace(covariance, d) / d * 1.001) << "at most the mean eigenvalue";
      }
    }
  }
}

TEST(Rotation, DegenerateCovariancesGiveSoundRotations) {
  const int d = 64;
  std::vector<float> zero(d * d, 0.0f), rank_one(d * d), tiny(d * d, 0.0f), huge(d * d, 0.0f);
  for (int i = 0; i < d; ++i) {
    for (int j = 0; j < d; ++j) rank_one[i * d + j] = static_cast<float>((i + 1) * (j + 1));
    tiny[i * d + i] = 1e-40f * static_cast<float>(i);
    huge[i * d + i] = 3e38f / static_cast<float>(i + 1);
  }
  for (const auto& covariance : {zero, rank_one, tiny, huge}) {
    for (RotationRecipe recipe : kRecipes) {
      EXPECT_LT(orthogonality_error(rotation_from_covariance(covariance, d, recipe), d), 1e-10);
      EXPECT_LT(inverse_error(calibrated_transform(covariance, 1, d, recipe, RotationSharing::Layer)), 1e-5);
    }
  }
  const std::vector<double> r = rotation_from_covariance(rank_one, d, RotationRecipe::UHP);
  const double flat = trace(rank_one, d) / d;
  for (double x : importance(r, rank_one, d)) EXPECT_NEAR(x, flat, 1e-9 * flat);
}

TEST(Rotation, RefusesCovariancesThatAreNotFinite) {
  const int d = 64;
  for (float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    std::vector<float> covariance = random_covariance(d, 50, 8);
    covariance[3 * d + 5] = bad;
    try {
      rotation_from_covariance(covariance, d, RotationRecipe::UHP);
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::BadFile);
      EXPECT_NE(std::string(error.what()).find("[3, 5]"), std::string::npos) << error.what();
    }
  }
}

TEST(Rotation, InverseErrorSeesABrokenTransform) {
  Transform t = hadamard_transform(2, 64);
  t.decode[64 * 64 + 7] += 0.5f;
  EXPECT_GT(inverse_error(t), 0.01);
  t.decode[7] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isinf(inverse_error(t)));
}

TEST(Rotation, PFallsAwayWhereTheHeadIsNoPowerOfTwo) {
  const std::vector<float> c = random_covariance(96, 120, 12);
  EXPECT_EQ(rotation_from_covariance(c, 96, RotationRecipe::UHP),
            rotation_from_covariance(c, 96, RotationRecipe::UH));
}

}  // namespace
}  // namespace kv2
