// SPDX-License-Identifier: Apache-2.0
// What the case files share: a seeded generator and memory of a backend that frees itself. Only for cases and
// tests.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "ops/op_case.h"

namespace kv2::cases {

/// SplitMix64: the same numbers on every machine and library.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 0x1234567u) {}

  uint64_t next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  int below(int n) { return static_cast<int>(next() % static_cast<uint64_t>(n)); }
  float uniform() { return static_cast<float>(next() >> 40) * 0x1p-24f; }  // [0, 1)
  /// About normal: four uniforms added, so no tail beyond 3.5 sigma.
  float normal(float mean, float sigma) {
    const float sum = uniform() + uniform() + uniform() + uniform();
    return mean + sigma * (sum - 2.0f) * 1.7320508f;
  }
  std::vector<float> normals(size_t n, float mean, float sigma) {
    std::vector<float> x(n);
    for (float& v : x) v = normal(mean, sigma);
    return x;
  }
  std::vector<int32_t> permutation(int n) {
    std::vector<int32_t> p(n);
    std::iota(p.begin(), p.end(), 0);
    for (int i = n - 1; i > 0; i--) std::swap(p[i], p[below(i + 1)]);
    return p;
  }

 private:
  uint64_t state_;
};

/// Device memory; copies share it, so that it can live in the functions of an OpRun.
template <class T>
class DeviceArray {
 public:
  DeviceArray(Backend& backend, size_t n)
      : backend_(&backend),
        n_(n),
        memory_(backend.allocate(n * sizeof(T)), [&backend](void* m) { backend.release(m); }) {}
  DeviceArray(Backend& backend, std::span<const T> host) : DeviceArray(backend, host.size()) { upload(host); }

  T* data() const { return static_cast<T*>(memory_.get()); }
  size_t size() const { return n_; }
  void upload(std::span<const T> host) const { backend_->upload(data(), host.data(), host.size_bytes()); }
  std::vector<T> download() const {
    std::vector<T> host(n_);
    backend_->sync();
    backend_->download(host.data(), data(), n_ * sizeof(T));
    return host;
  }

 private:
  Backend* backend_;
  size_t n_;
  std::shared_ptr<void> memory_;
};

inline DeviceArray<float> on_device(Backend& backend, const std::vector<float>& host) {
  return DeviceArray<float>(backend, std::span<const float>(host));
}

/// The batch sizes every op on rows is tried with: around the widths of vectors, tiles and pages.
inline constexpr int kRowCounts[] = {1, 2, 3, 7, 16, 17, 64, 65, 100, 513};

// One list per op, in the file of its family.
std::vector<OpCase> embed_cases();
std::vector<OpCase> rms_norm_cases();
std::vector<OpCase> linear_cases();
std::vector<OpCase> rope_cases();
std::vector<OpCase> transform_cases();
std::vector<OpCase> swiglu_cases();
std::vector<OpCase> append_cases();
std::vector<OpCase> demote_cases();
std::vector<OpCase> attend_cases();

std::vector<InvarianceCase> linear_invariance(int largest_rows);
std::vector<InvarianceCase> attend_invariance();
std::vector<InvarianceCase> append_invariance();

}  // namespace kv2::cases
