// SPDX-License-Identifier: Apache-2.0
#include "cuda/recorder.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/hash.h"
#include "cuda/cuda_check.h"
#include "cuda/device_memory.h"
#include "cuda/kernels.h"

namespace kv2::cuda {

Recorder::~Recorder() {
  cudaStreamSynchronize(stream_);
  for (auto& [signature, r] : recordings_) release(r);
}

void Recorder::release(Recording& r) {
  if (r.graph) cudaGraphExecDestroy(r.graph);
  cudaFreeHost(r.host);
  cudaFree(r.device);
  if (r.done) cudaEventDestroy(r.done);
  r = {};
}

uint64_t Recorder::number_of(double x) {
  return std::bit_cast<uint64_t>(x);
}

void Recorder::begin(Mode mode) {
  mode_ = mode;
  pass_++;
  signed_.clear();
  arrays_.clear();
  latest_.clear();
}

const void* Recorder::put(int key, const void* values, size_t bytes, uint64_t version) {
  if (bytes == 0) return nullptr;
  const auto known = latest_.find(key);
  if (known != latest_.end() && known->second.bytes == bytes &&
      (version != 0 ? known->second.version == version
                    : std::memcmp(arrays_.data() + known->second.at, values, bytes) == 0))
    return device_ ? device_ + known->second.at : nullptr;
  const size_t at = (arrays_.size() + 255) / 256 * 256;
  arrays_.resize(at + bytes);
  std::memcpy(arrays_.data() + at, values, bytes);
  latest_[key] = {at, bytes, version};
  if (mode_ == Mode::Dry) add(at);
  return device_ ? device_ + at : nullptr;
}

void Recorder::run(const std::function<void()>& ops) {
  struct Plainly {  // whatever happens, the next op is launched
    Recorder& r;
    ~Plainly() {
      r.begin(Mode::Plain);
      r.device_ = nullptr;
    }
  } const plainly{*this};
  begin(Mode::Dry);
  ops();
  add(arrays_.size());
  const uint64_t signature = hash64(std::as_bytes(std::span(signed_)));
  if (recordings_.size() >= kMaxRecordings && !recordings_.contains(signature)) {
    check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    for (auto& [hash, r] : recordings_) release(r);
    recordings_.clear();
  }
  Recording& r = recordings_[signature];
  if (r.n_seen++ == 0) {
    begin(Mode::Plain);
    return ops();
  }
  if (!r.graph) record(r, ops);
  launch(r);
}

/// What is captured next waits for everything before to have ended, also where it would begin early
/// (overlap.cuh): kernels read their arrays before they wait.
void Recorder::cut_overlap() {
  cudaStreamCaptureStatus status{};
  cudaGraph_t graph = nullptr;
  const cudaGraphNode_t* before = nullptr;
  size_t n_before = 0;
  check(cudaStreamGetCaptureInfo(stream_, &status, nullptr, &graph, &before, nullptr, &n_before),
        "cudaStreamGetCaptureInfo");
  cudaGraphNode_t node = nullptr;
  check(cudaGraphAddEmptyNode(&node, graph, before, n_before), "cudaGraphAddEmptyNode");
  check(cudaStreamUpdateCaptureDependencies(stream_, &node, nullptr, 1, cudaStreamSetCaptureDependencies),
        "cudaStreamUpdateCaptureDependencies");
}

void Recorder::record(Recording& r, const std::function<void()>& ops) {
  r.bytes = std::max<size_t>((arrays_.size() + 15) / 16 * 16, 16);  // launch_copy_here's pieces
  r.host = static_cast<std::byte*>(allocate_pinned(r.bytes));
  r.device = static_cast<std::byte*>(allocate_device(r.bytes));
  check(cudaEventCreateWithFlags(&r.done, cudaEventDisableTiming), "cudaEventCreate");
  device_ = r.device;
  begin(Mode::Recording);
  check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  cudaGraph_t graph = nullptr;
  try {
    launch_copy_here(r.host, r.device, r.bytes, stream_);
    cut_overlap();
    ops();
  } catch (...) {
    cudaStreamEndCapture(stream_, &graph);
    if (graph) cudaGraphDestroy(graph);
    release(r);
    throw;
  }
  check(cudaStreamEndCapture(stream_, &graph), "cudaStreamEndCapture");
  const cudaError_t status = cudaGraphInstantiate(&r.graph, graph, 0);
  cudaGraphDestroy(graph);
  check(status, "cudaGraphInstantiate");
}

void Recorder::launch(Recording& r) {
  KV2_CHECK(arrays_.size() <= r.bytes, "a step of {} bytes of arrays in a recording of {}", arrays_.size(),
            r.bytes);
  check(cudaEventSynchronize(r.done), "cudaEventSynchronize");
  std::memcpy(r.host, arrays_.data(), arrays_.size());
  check(cudaGraphLaunch(r.graph, stream_), "cudaGraphLaunch");
  check(cudaEventRecord(r.done, stream_), "cudaEventRecord");
}

}  // namespace kv2::cuda
