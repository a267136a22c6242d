// SPDX-License-Identifier: Apache-2.0
#include "cuda/device_memory.h"

#include <algorithm>
#include <cstring>

#include "base/memory.h"
#include "cuda/cuda_check.h"

namespace kv2::cuda {

void* allocate_device(size_t bytes) {
  void* memory = nullptr;
  const cudaError_t status = cudaMalloc(&memory, std::max<size_t>(bytes, 1));
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // not sticky
    size_t free_bytes = 0, total = 0;
    cudaMemGetInfo(&free_bytes, &total);
    throw_error(ErrorCode::OutOfMemory, "{} of GPU memory were asked for, {} of {} are free",
                format_bytes(bytes), format_bytes(free_bytes), format_bytes(total));
  }
  check(status, "cudaMalloc");
  return memory;
}

void* allocate_pinned(size_t bytes) {
  void* memory = nullptr;
  check(cudaMallocHost(&memory, bytes), "cudaMallocHost");
  return memory;
}

template <void* (*kAllocate)(size_t), cudaError_t (*kFree)(void*)>
void* GrowingBuffer<kAllocate, kFree>::reserve(size_t bytes) {
  if (bytes <= bytes_) return memory_;
  check(kFree(memory_), "free of a buffer");
  memory_ = nullptr;
  bytes_ = 0;
  memory_ = kAllocate(bytes);
  bytes_ = bytes;
  return memory_;
}

template class GrowingBuffer<allocate_device, cudaFree>;
template class GrowingBuffer<allocate_pinned, cudaFreeHost>;

Staging::Staging(cudaStream_t stream) : stream_(stream) {
  for (cudaEvent_t& e : left_) check(cudaEventCreateWithFlags(&e, cudaEventDisableTiming), "cudaEventCreate");
  resize(size_t{2} << 20);
}

Staging::~Staging() {
  release();
  for (cudaEvent_t e : left_) cudaEventDestroy(e);
}

void Staging::release() noexcept {
  cudaStreamSynchronize(stream_);
  cudaFreeHost(host_);
  cudaFree(device_);
  host_ = device_ = nullptr;
}

void Staging::resize(size_t segment_bytes) {
  release();
  for (Known& k : known_) k = {};
  segment_bytes_ = segment_bytes;
  used_ = 0;
  host_ = static_cast<std::byte*>(allocate_pinned(bytes()));
  device_ = static_cast<std::byte*>(allocate_device(bytes()));
}

/// The kernels that read the segment to be entered were enqueued before it was left, a round ago.
void Staging::enter_next_segment() {
  check(cudaEventRecord(left_[segment_ % kSegments], stream_), "cudaEventRecord");
  segment_++;
  used_ = 0;
  // This memory was segment n-4; put_bytes hands its pointers out until n-3 is left, and a kernel that takes
  // such a pointer together with one of n-2 is enqueued before n-2 is left.
  if (segment_ >= 2) check(cudaEventSynchronize(left_[(segment_ + 2) % kSegments]), "cudaEventSynchronize");
}

const void* Staging::put_bytes(Key key, const void* values, size_t bytes, uint64_t version) {
  Known& known = known_[static_cast<int>(key)];
  // see enter_next_segment
  const bool fresh = known.device && segment_ - known.segment < kSegments / 2;
  if (fresh && known.bytes.size() == bytes &&
      (version != 0 ? known.version == version
                    : bytes == 0 || std::memcmp(known.bytes.data(), values, bytes) == 0))
    return known.device;
  if (bytes == 0) return nullptr;
  const size_t rounded = (bytes + 255) / 256 * 256;
  if (rounded > segment_bytes_) resize(std::max(rounded, 2 * segment_bytes_));
  if (used_ + rounded > segment_bytes_) enter_next_segment();
  const size_t at = segment_ % kSegments * segment_bytes_ + used_;
  used_ += rounded;
  std::memcpy(host_ + at, values, bytes);
  check(cudaMemcpyAsync(device_ + at, host_ + at, bytes, cudaMemcpyHostToDevice, stream_), "cudaMemcpyAsync");
  const auto* first = static_cast<const std::byte*>(values);
  known.bytes.assign(first, first + bytes);
  known.device = device_ + at;
  known.segment = segment_;
  known.version = version;
  return known.device;
}

}  // namespace kv2::cuda
