// SPDX-License-Identifier: Apache-2.0
#include "cuda/cold_clock.h"

#include "cuda/cuda_check.h"
#include "cuda/kernels.h"

namespace kv2::cuda {
namespace {

constexpr size_t kFlushBytes = size_t{256} << 20;  // more than any L2

}  // namespace

ColdClock::~ColdClock() {
  if (begin_) cudaEventDestroy(begin_);
  if (end_) cudaEventDestroy(end_);
}

double ColdClock::seconds(const std::function<void()>& ops) {
  if (!begin_) check(cudaEventCreate(&begin_), "cudaEventCreate");
  if (!end_) check(cudaEventCreate(&end_), "cudaEventCreate");
  // While this writes, the host enqueues what is timed: the device does not wait for it between the events.
  check(cudaMemsetAsync(flush_.reserve(kFlushBytes), 1, kFlushBytes, stream_), "cudaMemsetAsync");
  check(cudaEventRecord(begin_, stream_), "cudaEventRecord");
  ops();
  check(cudaEventRecord(end_, stream_), "cudaEventRecord");
  check(cudaEventSynchronize(end_), "what was timed");
  float ms = 0;
  check(cudaEventElapsedTime(&ms, begin_, end_), "cudaEventElapsedTime");
  return ms * 1e-3;
}

void ColdClock::read_all(const void* memory, size_t bytes) {
  launch_read_all(memory, bytes, static_cast<uint32_t*>(sink_.reserve(sizeof(uint32_t))), stream_);
  check_launch("read_all");
}

}  // namespace kv2::cuda
