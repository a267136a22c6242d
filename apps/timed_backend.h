// SPDX-License-Identifier: Apache-2.0
// A backend that hands every call to another one and takes the time of each operation: the profile of a step
// without a profiler. Calls are told apart by their name and their place in the step, so that the fastest of
// many steps can be taken call by call, which a busy machine does not spoil.
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "apps/bench.h"
#include "ops/backend.h"
#include "ops/device_extras.h"

namespace kv2::app {

class TimedBackend final : public Backend, public DeviceArgMax {
 public:
  explicit TimedBackend(Backend& inner) : inner_(inner) {}

  /// From here on calls are counted from the step's beginning.
  void start_step();
  /// Of each kind of call: seconds of a step, one for each step that had it (the k-th: the sum of every
  /// call's k-th fastest), and how many calls a step has.
  struct Part {
    std::string name;
    size_t n_calls, n_steps;
    Times times;
  };
  std::vector<Part> parts() const;

  std::string describe() const override { return inner_.describe(); }
  std::string linear_precision() const override { return inner_.linear_precision(); }
  void* allocate(size_t bytes) override { return inner_.allocate(bytes); }
  void release(void* memory) noexcept override { inner_.release(memory); }
  void upload(void* device, const void* host, size_t n) override { inner_.upload(device, host, n); }
  void download(void* host, const void* device, size_t n) override {
    timed("copies", [&] { inner_.download(host, device, n); });
  }
  void copy(void* to, const void* from, size_t n) override {
    timed("copies", [&] { inner_.copy(to, from, n); });
  }
  void copy_rows(void* to, size_t to_stride, const void* from, size_t from_stride, size_t row_bytes,
                 int n_rows) override {
    timed("copies", [&] { inner_.copy_rows(to, to_stride, from, from_stride, row_bytes, n_rows); });
  }
  void sync() override { inner_.sync(); }
  void require_formats(const PageLayout& layout) const override { inner_.require_formats(layout); }
  bool multiplies_codes() const override { return inner_.multiplies_codes(); }
  size_t coded_bytes(int n_in, int n_out, const WeightCodes& codes) const override {
    return inner_.coded_bytes(n_in, n_out, codes);
  }
  std::unique_ptr<Linear> make_linear(const LinearSource& source) override {
    return inner_.make_linear(source);
  }
  std::unique_ptr<Linear> make_embedding(const LinearSource& source) override {
    return inner_.make_embedding(source);
  }
  size_t scratch_bytes(int n_rows, int max_width, const KvShape& shape) const override {
    return inner_.scratch_bytes(n_rows, max_width, shape);
  }
  void embed(const Linear& table, const EmbedParams& p) override {
    timed("embed", [&] { inner_.embed(table, p); });
  }
  void rms_norm(const RmsNormParams& p) override {
    timed("rms_norm", [&] { inner_.rms_norm(p); });
  }
  void linear(const Linear& w, const LinearParams& p) override {
    timed(fmt::format("linear {} to {}", w.n_in(), w.n_out()), [&] { inner_.linear(w, p); });
  }
  void rope(const RopeParams& p) override {
    timed("rope", [&] { inner_.rope(p); });
  }
  void transform(const TransformParams& p) override {
    timed("transform", [&] { inner_.transform(p); });
  }
  void append(const AppendParams& p) override {
    timed("append", [&] { inner_.append(p); });
  }
  void demote(const DemoteParams& p) override {
    timed("demote", [&] { inner_.demote(p); });
  }
  void attend(const AttendParams& p) override {
    timed("attend", [&] { inner_.attend(p); });
  }
  void swiglu(const SwigluParams& p) override {
    timed("swiglu", [&] { inner_.swiglu(p); });
  }
  void arg_max(const float* rows, int n_rows, int width, int32_t* best) override {
    timed("arg_max", [&] { kv2::arg_max(inner_, rows, n_rows, width, best); });
  }
  void export_full(const void* page, int head_dim, std::span<std::byte> to) override {
    inner_.export_full(page, head_dim, to);
  }
  void import_full(void* page, int head_dim, std::span<const std::byte> from) override {
    inner_.import_full(page, head_dim, from);
  }
  void export_packed(const void* page, const Int2Layout& layout, std::span<std::byte> to) override {
    inner_.export_packed(page, layout, to);
  }
  void import_packed(void* page, const Int2Layout& layout, std::span<const std::byte> from) override {
    inner_.import_packed(page, layout, from);
  }

 private:
  template <class Body>
  void timed(const std::string& name, const Body& body) {
    if (!counting_) return body();
    const auto start = std::chrono::steady_clock::now();
    body();
    inner_.sync();
    record(name, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  void record(const std::string& name, double seconds);

  Backend& inner_;
  bool counting_ = false;
  std::map<std::string, std::vector<std::vector<double>>> seconds_;  // [call of the step][step]
  std::map<std::string, size_t> calls_;                              // of this step so far
};

}  // namespace kv2::app
