// SPDX-License-Identifier: Apache-2.0
// Steps recorded as CUDA graphs. A step runs its ops dry first: they launch nothing, but say what they would
// launch (Recorder::sign) and hand over their host arrays (Recorder::put). A step whose launches are those of
// one recorded before needs only the new arrays, one copy, and one graph launch. The second step of a kind is
// recorded; the first runs plainly, so that every buffer has grown and every algorithm is chosen.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <tuple>
#include <vector>

namespace kv2::cuda {

class Recorder {
 public:
  explicit Recorder(cudaStream_t stream) : stream_(stream) {}
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  void run(const std::function<void()>& ops);

  /// For ops. True: nothing may be launched now. `values` are everything a launch depends on beside arrays of
  /// put(): device pointers, sizes, constants; tuples of them (signature.h) too.
  template <class... T>
  bool sign(int op, const T&... values) {
    if (mode_ != Mode::Dry) return false;
    mix(static_cast<uint64_t>(op));
    (mix_one(values), ...);
    return true;
  }
  bool dry() const { return mode_ == Mode::Dry; }
  /// Another number for every pass over a step's ops. What one pass has launched, another cannot count on: it
  /// may be dry, or a recording that is replayed later.
  uint64_t pass() const { return pass_; }
  /// Whether put() is to be used instead of the backend's own staging.
  bool active() const { return mode_ != Mode::Plain; }
  /// Device memory that has `bytes` of `values` when the step runs (nullptr in a dry run). What was put under
  /// the same key in this step and has not changed is not put again.
  const void* put(int key, const void* values, size_t bytes);

 private:
  enum class Mode { Plain, Dry, Recording };
  struct Recording {
    cudaGraphExec_t graph = nullptr;
    std::byte *host = nullptr, *device = nullptr;
    size_t bytes = 0;
    cudaEvent_t copied = nullptr;
    int n_seen = 0;
  };
  struct Put {
    size_t at, bytes;
  };
  static constexpr size_t kMaxRecordings = 24;

  static uint64_t number_of(const void* p) { return reinterpret_cast<uintptr_t>(p); }
  static uint64_t number_of(float x) { return number_of(static_cast<double>(x)); }
  static uint64_t number_of(double x);
  template <class T>
  static uint64_t number_of(T x) requires std::is_integral_v<T> || std::is_enum_v<T> {
    return static_cast<uint64_t>(x);
  }
  void mix(uint64_t x);
  template <class T>
  void mix_one(const T& value) {
    mix(number_of(value));
  }
  template <class... T>
  void mix_one(const std::tuple<T...>& values) {
    std::apply([this](const T&... each) { (mix_one(each), ...); }, values);
  }
  void begin(Mode mode);
  void record(Recording& r, const std::function<void()>& ops);
  void launch(Recording& r);
  static void release(Recording& r);

  cudaStream_t stream_;
  Mode mode_ = Mode::Plain;
  uint64_t signature_ = 0, pass_ = 0;
  std::vector<std::byte> arrays_;  // of the step, one after the other
  std::map<int, Put> latest_;      // of each key
  std::byte* device_ = nullptr;    // of the recording being made
  std::map<uint64_t, Recording> recordings_;
};

}  // namespace kv2::cuda
