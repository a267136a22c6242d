// SPDX-License-Identifier: Apache-2.0
// Calibrated rotations R = U·H·P (arXiv 2605.17757, sec. 3): U the eigenvectors of a covariance in ascending
// order of eigenvalue, H the normalised Hadamard matrix, P the bit-reversal permutation of the channels
// sorted by importance. Double precision throughout, Eigen's self-adjoint solver.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kv2/cache.h"
#include "quant/transform.h"

namespace kv2 {

/// Whether hadamard(n) exists here: n = m·2^k with m in {1, 12, 20, 28}.
bool has_hadamard(int n);
/// The orders above, for messages.
std::string hadamard_orders();
/// The ±1 matrix behind hadamard(n), row-major [n, n]: S·Sᵀ = n·I exactly. Unsupported for other orders,
/// listing them.
std::vector<int8_t> hadamard_signs(int n);
/// H of order n, row-major [n, n], entries ±1/sqrt(n), symmetric where n is a power of two.
std::vector<double> hadamard(int n);
/// perm[j] = n-1-bit_reversal(j): (M·P)[:, j] = M[:, perm[j]]. n a power of two, else Unsupported.
std::vector<int> bit_reversal_permutation(int n);

/// R of one covariance [d, d] (symmetrised here). Column signs are fixed (largest entry of each eigenvector
/// positive) so that the same covariance gives the same rotation. P is left out where d is no power of two. A
/// singular or zero covariance is fine (any basis of its null space will do). Errors: BadFile for a value
/// that is not finite.
std::vector<double> rotation_from_covariance(std::span<const float> covariance, int head_dim,
                                             RotationRecipe recipe);

/// A rotation per KV head from [n_kv_heads, d, d], or with RotationSharing::Layer one from the heads' mean,
/// broadcast.
Transform calibrated_transform(std::span<const float> covariances, int n_kv_heads, int head_dim,
                               RotationRecipe recipe, RotationSharing sharing);

/// Not a rotation: encode = U·Λ^(−exponent/2)·H·P and decode its inverse, U and Λ the eigenvectors and
/// eigenvalues of the covariance of what is stored (not of a target), each eigenvalue raised by 5 % of their
/// mean. exponent 1 whitens, 0 is the rotation alone. Errors as above.
Transform whitened_transform(std::span<const float> covariances, int n_kv_heads, int head_dim,
                             RotationRecipe recipe, RotationSharing sharing, double exponent);

/// max |RᵀR - I| over all heads of encode·decode; a transform is sound below about 1e-5.
double inverse_error(const Transform& transform);

}  // namespace kv2
