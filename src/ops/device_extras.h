// SPDX-License-Identifier: Apache-2.0
// What only some backends have: memory of their own, steps that are recorded and replayed, ops fused. A
// backend implements the interface beside Backend; callers use the functions, which work with every backend.
#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "ops/backend.h"

namespace kv2 {

class OwnMemory {
 public:
  virtual ~OwnMemory() = default;
  virtual size_t free_memory() const = 0;
};

/// Packed pages in another format than int2 in an order of the backend's own, of the canonical size.
class OwnSideOrder {
 public:
  virtual ~OwnSideOrder() = default;
  /// A layer's part of a page in host memory, in place.
  virtual void sides_to_canonical(const LayerLayout& layer, const KvShape& shape, std::byte* part) const = 0;
  virtual void sides_from_canonical(const LayerLayout& layer, const KvShape& shape,
                                    std::byte* part) const = 0;
};

/// A layer's part of a packed page, layer.bytes(), in another format than int2: the canonical form to and
/// from device memory.
void export_sides(Backend& backend, const void* part, const LayerLayout& layer, const KvShape& shape,
                  std::span<std::byte> canonical);
void import_sides(Backend& backend, void* part, const LayerLayout& layer, const KvShape& shape,
                  std::span<const std::byte> canonical);

class StepRecorder {
 public:
  virtual ~StepRecorder() = default;
  virtual void run_step(const std::function<void()>& ops) = 0;
};

/// What stands between the product with W_qkv and attention, for all rows of a batch. Pointers are device
/// memory, positions those of the sequences.
struct HeadsParams {
  struct Side {
    const float* norm = nullptr;  // [head_dim], of an RMS norm per head; nullptr: none
    const float* matrix =
        nullptr;                  // [n_kv_heads, head_dim, head_dim] of the method's basis; nullptr: identity
    const float* mean = nullptr;  // [n_kv_heads, head_dim], subtracted before the matrix
  };
  int layer;
  const float* qkv;  // [n_rows, q | k | v]
  float* q_out;      // [n_rows, n_heads, head_dim]; not over qkv
  Side q, k, v;      // of q the matrix is K's decode matrix, transposed
  float epsilon;
  const float* inv_frequency;  // [head_dim / 2], host memory
  RopePairing pairing;
  KvView kv;
  std::span<const SequenceView> sequences;
  int n_rows;
};

class FusedHeads {
 public:
  virtual ~FusedHeads() = default;
  virtual bool heads(const HeadsParams& p) = 0;
};

/// Norms of q and k, RoPE, into the method's basis, append: the same bits as by rms_norm, rope, transform and
/// append. False: nothing was done, because this backend has no fused form or none for this size.
bool fused_heads(Backend& backend, const HeadsParams& p);

/// For benches: what the device takes, without the host and with cold caches.
class DeviceClock {
 public:
  virtual ~DeviceClock() = default;
  /// Seconds from the first to the last of what `ops` enqueues; every cache is full of something else before.
  virtual double cold_seconds(const std::function<void()>& ops) = 0;
  /// Enqueues nothing but reading: what bounds every op that reads as much. bytes ≤ 16: an almost empty op.
  virtual void read_all(const void* memory, size_t bytes) = 0;
};

class DeviceArgMax {
 public:
  virtual ~DeviceArgMax() = default;
  virtual void arg_max(const float* rows, int n_rows, int width, int32_t* best) = 0;
};

/// arg_max (ops/arg_max.h) of each row of device memory, into host memory; waits for it. Whole rows come to
/// the host only where the backend cannot look for itself.
void arg_max(Backend& backend, const float* rows, int n_rows, int width, int32_t* best);

/// It is a DeviceClock.
bool has_clock(const Backend& backend);

/// Its memory is not the host's.
bool has_own_memory(const Backend& backend);

/// Bytes that allocate() can still give: the device's, or the host's.
size_t free_memory(const Backend& backend);

/// Runs `ops`, which calls ops of this backend and nothing else of it, perhaps more than once: a backend may
/// record a step and replay it where only what the host hands over (tokens, positions, pages, plans) differs.
/// `ops` must not look at results.
void run_step(Backend& backend, const std::function<void()>& ops);

}  // namespace kv2
