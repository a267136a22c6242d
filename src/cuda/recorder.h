// SPDX-License-Identifier: Apache-2.0
// Steps recorded as CUDA graphs. A step runs its ops dry first: they launch nothing, but say what they would
// launch (Recorder::sign) and hand over their host arrays (Recorder::put). A step whose launches are those of
// one recorded before needs only the new arrays and one graph launch: the graph itself fetches them from
// pinned memory. The second step of a kind is recorded; the first runs plainly, so that every buffer has
// grown and every algorithm is chosen. The GPU waits for the dry run: it is all that stands between two
// steps.
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
    add(op);
    (add(values), ...);
    return true;
  }
  bool dry() const { return mode_ == Mode::Dry; }
  /// Another number for every pass over a step's ops. What one pass has launched, another cannot count on: it
  /// may be dry, or a recording that is replayed later.
  uint64_t pass() const { return pass_; }
  /// Whether put() is to be used instead of the backend's own staging.
  bool active() const { return mode_ != Mode::Plain; }
  /// Device memory that has `bytes` of `values` when the step runs (nullptr in a dry run). What was put under
  /// the same key in this step and has not changed is not put again; where `version` is not 0, another
  /// version says whether it has.
  const void* put(int key, const void* values, size_t bytes, uint64_t version = 0);

 private:
  enum class Mode { Plain, Dry, Recording };
  struct Recording {
    cudaGraphExec_t graph = nullptr;
    std::byte *host = nullptr, *device = nullptr;
    size_t bytes = 0;
    cudaEvent_t done = nullptr;  // then `host` has been read
    int n_seen = 0;
  };
  struct Put {
    size_t at, bytes;
    uint64_t version;
  };
  static constexpr size_t kMaxRecordings = 48;  // a model's step has two

  static uint64_t number_of(const void* p) { return reinterpret_cast<uintptr_t>(p); }
  static uint64_t number_of(float x) { return number_of(static_cast<double>(x)); }
  static uint64_t number_of(double x);
  template <class T>
  static uint64_t number_of(T x) requires std::is_integral_v<T> || std::is_enum_v<T> {
    return static_cast<uint64_t>(x);
  }
  template <class T>
  void add(const T& value) {
    signed_.push_back(number_of(value));
  }
  template <class... T>
  void add(const std::tuple<T...>& values) {
    std::apply([this](const T&... each) { (add(each), ...); }, values);
  }
  void begin(Mode mode);
  void record(Recording& r, const std::function<void()>& ops);
  void launch(Recording& r);
  void cut_overlap();
  static void release(Recording& r);

  cudaStream_t stream_;
  Mode mode_ = Mode::Plain;
  uint64_t pass_ = 0;
  std::vector<uint64_t> signed_;              // what a dry run's launches depend on
  std::vector<std::byte> arrays_;             // of the step, one after the other
  std::map<int, Put> latest_;                 // of each key
  std::byte* device_ = nullptr;               // of the recording being made
  std::map<uint64_t, Recording> recordings_;  // by the hash of signed_
};

}  // namespace kv2::cuda
