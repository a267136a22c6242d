// SPDX-License-Identifier: Apache-2.0
// Hadamard matrices of order m·2^k, m in {1, 12, 20, 28}: Sylvester's doubling over Paley's constructions.
// They cover the head dims of known models: 64 128 256 512, 80 = 20·4, 96 = 12·8, 112 = 28·4, 160, 192.
// Entries ±1, exact.
#include <cmath>

#include "base/check.h"
#include "quant/rotation.h"

namespace kv2 {
namespace {

using Signs = std::vector<int8_t>;  // row-major, square

/// Jacobsthal's Q of prime order q: Q[i][j] = quadratic character of i - j.
Signs jacobsthal(int q) {
  std::vector<int8_t> character(q, -1);
  character[0] = 0;
  for (int x = 1; x < q; ++x) character[x * x % q] = 1;
  Signs matrix(static_cast<size_t>(q) * q);
  for (int i = 0; i < q; ++i) {
    for (int j = 0; j < q; ++j) matrix[i * q + j] = character[(i - j + q) % q];
  }
  return matrix;
}

/// The conference matrix of order q+1 around Q: zero diagonal, first row ones, first column `sign`, C·Cᵀ =
/// q·I.
Signs conference(int q, int8_t sign) {
  const Signs inner = jacobsthal(q);
  const int n = q + 1;
  Signs matrix(static_cast<size_t>(n) * n, 0);
  for (int i = 1; i < n; ++i) {
    matrix[i] = 1;
    matrix[i * n] = sign;
    for (int j = 1; j < n; ++j) matrix[i * n + j] = inner[(i - 1) * q + j - 1];
  }
  return matrix;
}

/// Paley I, q = 3 mod 4: I + C with C skew; order q + 1.
Signs paley_one(int q) {
  Signs matrix = conference(q, -1);
  for (int i = 0; i <= q; ++i) matrix[i * (q + 1) + i] = 1;
  return matrix;
}

/// Paley II, q = 1 mod 4: C ⊗ [1 1; 1 -1] + I ⊗ [1 -1; -1 -1] with C symmetric; order 2(q + 1).
Signs paley_two(int q) {
  const Signs c = conference(q, 1);
  const int half = q + 1, n = 2 * half;
  Signs matrix(static_cast<size_t>(n) * n);
  const int8_t off[2][2] = {{1, 1}, {1, -1}}, diagonal[2][2] = {{1, -1}, {-1, -1}};
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j < n; ++j) {
      const int8_t entry = c[(i / 2) * half + j / 2];
      matrix[i * n + j] =
          i / 2 == j / 2 ? diagonal[i % 2][j % 2] : static_cast<int8_t>(entry * off[i % 2][j % 2]);
    }
  }
  return matrix;
}

/// m of n = m·2^k, or 0.
int base_order(int n) {
  if (n <= 0 || n > (1 << 14)) return 0;
  int odd = n;
  while (odd % 2 == 0) odd /= 2;
  if (odd == 1) return 1;
  const int m = 4 * odd;
  return n % m == 0 && (m == 12 || m == 20 || m == 28) ? m : 0;
}

}  // namespace

bool has_hadamard(int n) {
  return base_order(n) != 0;
}

std::string hadamard_orders() {
  return "2^k, 12·2^k, 20·2^k, 28·2^k";
}

std::vector<int8_t> hadamard_signs(int n) {
  const int m = base_order(n);
  if (m == 0) {
    throw_error(ErrorCode::Unsupported, "no Hadamard matrix of order {} here; supported orders: {}", n,
                hadamard_orders());
  }
  Signs matrix = m == 1 ? Signs{1} : m == 28 ? paley_two(13) : paley_one(m - 1);
  for (int size = m; size < n; size *= 2) {  // [[H, H], [H, -H]]
    Signs doubled(matrix.size() * 4);
    for (int i = 0; i < size; ++i) {
      for (int j = 0; j < size; ++j) {
        const int8_t h = matrix[static_cast<size_t>(i) * size + j];
        int8_t* top = doubled.data() + (static_cast<size_t>(i) * 2) * size + j;
        int8_t* bottom = top + static_cast<size_t>(size) * 2 * size;
        top[0] = top[size] = bottom[0] = h;
        bottom[size] = static_cast<int8_t>(-h);
      }
    }
    matrix = std::move(doubled);
  }
  return matrix;
}

std::vector<double> hadamard(int n) {
  const Signs signs = hadamard_signs(n);
  const double unit = 1.0 / std::sqrt(static_cast<double>(n));
  std::vector<double> matrix(signs.size());
  for (size_t i = 0; i < signs.size(); ++i) matrix[i] = signs[i] * unit;
  return matrix;
}

}  // namespace kv2
