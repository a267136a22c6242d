// SPDX-License-Identifier: Apache-2.0
// Times the CUDA attention and demotion kernels on shapes of long decodes: checks every result against the
// plain f32 kernel first (which the op tests hold against the reference), empties the L2 before each run,
// prints medians, bytes and the share of the read bandwidth measured in the same run. One JSON line per shape
// with --json.
//   kv2_bench_attend_cuda [--json] [--only decode|short|shapes|omni|prefill|demote|linear]
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "cuda/attend_plan.h"
#include "cuda/channel_pages.h"
#include "cuda/kernels.h"
#include "cuda/side_format.h"
#include "fill.h"

namespace {

using namespace kv2;

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(status));
  std::exit(1);
}

template <class T>
class Device {
 public:
  explicit Device(size_t n) : n_(n) {
    check(cudaMalloc(reinterpret_cast<void**>(&memory_), n * sizeof(T)), "cudaMalloc");
  }
  explicit Device(const std::vector<T>& host) : Device(host.size()) {
    check(cudaMemcpy(memory_, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice), "upload");
  }
  ~Device() { cudaFree(memory_); }
  Device(const Device&) = delete;
  T* get() const { return memory_; }
  size_t size() const { return n_; }
  std::vector<T> download() const {
    std::vector<T> host(n_);
    check(cudaMemcpy(host.data(), memory_, n_ * sizeof(T), cudaMemcpyDeviceToHost), "download");
    return host;
  }

 private:
  T* memory_ = nullptr;
  size_t n_;
};

class Timer {
 public:
  Timer() : flush_(size_t{256} << 20) {
    cudaEventCreate(&begin_);
    cudaEventCreate(&end_);
  }
  /// Median milliseconds of `run`, the L2 full of something else before each.
  double median(const std::function<void()>& run, int n = 21) {
    std::vector<float> times;
    for (int i = 0; i < n + 3; i++) {
      check(cudaMemsetAsync(flush_.get(), i, flush_.size()), "memset");
      cudaEventRecord(begin_);
      run();
      cudaEventRecord(end_);
      check(cudaEventSynchronize(end_), "run");
      float ms = 0;
      cudaEventElapsedTime(&ms, begin_, end_);
      if (i >= 3) times.push_back(ms);
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }

 private:
  Device<char> flush_;
  cudaEvent_t begin_, end_;
};

struct Bench {
  Timer timer;
  bool json = false;
  double read_bandwidth = 0;  // bytes per ms

  void measure_bandwidth() {
    const Device<std::byte> x(size_t{4} << 30);
    const Device<uint32_t> out(1);
    check(cudaMemset(x.get(), 1, x.size()), "memset");
    double best = 1e9;
    for (const int blocks : {132 * 8, 132 * 16, 132 * 32})
      best = std::min(best, timer.median([&] { bench::read_all(x.get(), x.size(), out.get(), blocks); }, 7));
    read_bandwidth = static_cast<double>(x.size()) / best;
    std::printf("read bandwidth %.2f TB/s\n", read_bandwidth / 1e9);
  }

  /// `quantized`: else every page is read in bf16.
  void attend(int batch, int tokens, int n_kv_heads, int q_per_kv, int d, int prompt_rows,
              bool quantized = true) {
    const KvShape shape{1, n_kv_heads * q_per_kv, n_kv_heads, d};
    const PageLayout layout = PageLayout::of_int2(shape, d);
    Visibility rule;
    rule.quantized = quantized;
    const int n_pages = (tokens + kPageTokens - 1) / kPageTokens;
    const bool all_full = prompt_rows > 1 || !quantized;
    const int n_full = all_full ? n_pages : rule.sink_pages + rule.recent_pages + 1;
    const size_t n_packed = static_cast<size_t>(batch) * n_pages;
    const Device<std::byte> packed(n_packed * layout.packed_page_bytes());
    const Device<std::byte> full(static_cast<size_t>(batch) * n_full * layout.full_page_bytes());
    const int page_words = static_cast<int>(layout.packed_head_bytes(0) / 4);
    bench::fill_packed(packed.get(), packed.size() / 4, page_words, kPageTokens * d / 8);
    bench::fill_full(full.get(), full.size() / 2);
    // slots in random order; a page that is not read is held nowhere
    std::vector<int32_t> order(n_packed), tables(2 * n_packed, -1);
    for (size_t i = 0; i < n_packed; i++) order[i] = static_cast<int32_t>(i);
    for (size_t i = n_packed - 1; i > 0; i--)
      std::swap(order[i], order[(i * 2654435761ull + 12345) % (i + 1)]);
    for (int b = 0; b < batch; b++) {
      int32_t next = b * n_full;
      for (int p = 0; p < n_pages; p++) {
        tables[(2 * b + 1) * size_t(n_pages) + p] = order[b * size_t(n_pages) + p];
        const bool is_full = all_full || !rule.packed(n_pages - 1, p);
        if (is_full) tables[2 * b * size_t(n_pages) + p] = next++;
      }
    }
    const Device<int32_t> device_tables(tables);
    std::vector<SequenceView> views;
    for (int b = 0; b < batch; b++)
      views.push_back({b * prompt_rows, prompt_rows, tokens - prompt_rows, 0,
                       device_tables.get() + 2 * b * size_t(n_pages),
                       device_tables.get() + (2 * b + 1) * size_t(n_pages)});
    std::vector<float> q_host(static_cast<size_t>(batch) * prompt_rows * shape.n_heads * d);
    std::srand(1);
    for (float& x : q_host) x = (std::rand() % 2001 - 800) / 800.0f;
    const Device<float> q(q_host), out(q_host.size()), want(q_host.size());
    const int pairs = cuda::attend_pairs(shape, prompt_rows == 1, 0);
    const cuda::PrefillKernel best = cuda::prefill_kernel_for(d, d, 0);
    const auto plan = cuda::plan_attend(views, shape, rule, {pairs, 132, best});
    const auto single = cuda::plan_attend(views, shape, rule, {pairs, 132, cuda::PrefillKernel::None});
    const Device<cuda::AttendTile> tiles(plan.tiles), single_tiles(single.tiles);
    const Device<cuda::AttendSegment> segments(plan.segments), single_segments(single.segments);
    const Device<float> partials(std::max<size_t>(1, cuda::partial_bytes(single, shape, pairs) / 4));
    const Device<uint32_t> arrivals(single.tiles.size() * n_kv_heads);
    check(cudaMemset(arrivals.get(), 0, arrivals.size() * 4), "memset");
    const auto args_of = [&](const cuda::AttendPlan& p, float* to) {
      const bool is_single = &p == &single;
      const auto* t = is_single ? single_tiles.get() : tiles.get();
      return cuda::AttendArgs{
          .q = q.get(),
          .out = to,
          .tiles = t,
          .n_tiles = p.n_tiles,
          .n_kv_heads = n_kv_heads,
          .q_per_kv = q_per_kv,
          .head_dim = d,
          .group = d,
          .full = {full.get(), layout.full_page_bytes(), layout.full_head_bytes()},
          .packed = {packed.get(), layout.packed_page_bytes(), layout.packed_head_bytes(0)},
          .softmax_scale = 1.0f / std::sqrt(static_cast<float>(d)),
          .soft_cap = 0.0f,
          .segments = is_single ? single_segments.get() : segments.get(),
          .n_blocks = p.n_blocks,
          .max_runs = p.max_runs,
          .overlaps = false,
          .partials = partials.get(),
          .arrivals = arrivals.get(),
          .prefill_tiles = t + p.n_tiles,
          .n_prefill_blocks = p.n_prefill_blocks,
          .prefill_kernel = p.prefill_kernel};
    };
    const cuda::AttendArgs args = args_of(plan, out.get());
    check(cudaMemset(out.get(), 0xff, out.size() * 4), "memset");
    cuda::launch_attend(args, pairs, nullptr);
    check(cudaDeviceSynchronize(), "attend");
    if (plan.n_prefill_blocks > 0) {
      const std::vector<float> got = out.download();
      const auto compare = [&](const cuda::AttendArgs& other, const char* name) {
        check(cudaMemset(want.get(), 0xff, want.size() * 4), "memset");
        cuda::launch_attend(other, pairs, nullptr);
        check(cudaDeviceSynchronize(), name);
        const std::vector<float> expected = want.download();
        size_t differ = 0;
        for (size_t i = 0; i < got.size(); i++) differ += std::memcmp(&got[i], &expected[i], 4) != 0;
        std::printf("%zu of %zu values differ in a bit from %s's\n", differ, got.size(), name);
      };
      compare(args_of(single, want.get()), "attend_kernel");
      if (plan.prefill_kernel == cuda::PrefillKernel::Hopper) {
        cuda::AttendArgs portable = args_of(plan, want.get());
        portable.prefill_kernel = cuda::PrefillKernel::Packed;
        compare(portable, "prefill_kernel");
        const double ms = timer.median([&] { cuda::launch_attend(portable, pairs, nullptr); }, 5);
        std::printf("prefill_kernel: %.4f ms\n", ms);
      }
    }
    const double error = prompt_rows * static_cast<double>(tokens) * batch > 5e6 ? -1 : [&] {
      const cuda::AttendArgs plain = args_of(single, want.get());
      cuda::launch_attend_generic(plain, nullptr);
      check(cudaDeviceSynchronize(), "attend_generic");
      return difference_of(out, want);
    }();
    const double ms =
        timer.median([&] { cuda::launch_attend(args, pairs, nullptr); }, prompt_rows > 1 ? 5 : 21);
    const double n_packed_read =
        quantized ? std::max(0, n_pages - 1 - rule.recent_pages - rule.sink_pages) : 0;
    const double bytes = batch * (n_packed_read * layout.packed_page_bytes() +
                                  (n_pages - n_packed_read) * layout.full_page_bytes());
    const double flops = 4.0 * batch * prompt_rows * shape.n_heads * d * (tokens - prompt_rows / 2.0);
    std::printf(
        "attend %s heads %dx%d d=%d B=%d T=%d rows=%d: %.4f ms, %.3f GB, %.2f TB/s = %.0f%% of read, "
        "%.0f TFLOP/s, error %.1e, %d blocks\n",
        quantized ? "int2" : "bf16", n_kv_heads, q_per_kv, d, batch, tokens, prompt_rows, ms, bytes / 1e9,
        bytes / ms / 1e9, 100 * bytes / ms / read_bandwidth, flops / ms / 1e9, error,
        plan.n_blocks + plan.n_prefill_blocks);
    if (json)
      std::printf(
          "{\"op\":\"attend\",\"pages\":\"%s\",\"kv_heads\":%d,\"q_per_kv\":%d,\"d\":%d,\"batch\":%d,"
          "\"tokens\":%d,\"rows\":%"
          "d,"
          "\"ms\":%.5f,\"bytes\":%.0f,\"read_share\":%.4f,\"error\":%.3e}\n",
          quantized ? "int2" : "bf16", n_kv_heads, q_per_kv, d, batch, tokens, prompt_rows, ms, bytes,
          bytes / ms / read_bandwidth, error);
    std::fflush(stdout);
  }

  /// kv2's own products for few rows, against what reading the weights takes.
  void linear(int n_in, int n_out, int n_rows) {
    const Device<std::byte> weights(size_t{2} * n_in * n_out), x(size_t{2} * n_in * n_rows);
    bench::fill_full(weights.get(), weights.size() / 2);
    bench::fill_full(x.get(), x.size() / 2);
    const Device<float> out(static_cast<size_t>(n_out) * n_rows);
    const cuda::FewRows p{reinterpret_cast<const __nv_bfloat16*>(weights.get()),
                          nullptr,
                          reinterpret_cast<const unsigned char*>(x.get()),
                          out.get(),
                          n_in,
                          n_out,
                          n_rows,
                          false};
    const double ms = timer.median([&] { cuda::launch_few_rows(p, 132, nullptr); });
    check(cudaDeviceSynchronize(), "few_rows");
    const double bytes = static_cast<double>(weights.size());
    std::printf("linear %d -> %d, %d rows: %.4f ms, %.2f TB/s of weights = %.0f%% of read\n", n_in, n_out,
                n_rows, ms, bytes / ms / 1e9, 100 * bytes / ms / read_bandwidth);
    std::fflush(stdout);
  }

  /// omni2's pages, or kivi2's without norms, in decode: against attend_formats.
  void attend_channels(int batch, int tokens, int n_kv_heads, int q_per_kv, int d, bool norms) {
    const KvShape shape{1, n_kv_heads * q_per_kv, n_kv_heads, d};
    const SideFormat k{.codec = CodecId::Channel,
                       .bits = 2,
                       .group = 32,
                       .norm = norms ? TokenNorm::AllHeads : TokenNorm::Off},
        v{.codec = CodecId::Affine, .bits = 2, .group = 32};
    const PageLayout layout = PageLayout::of({.method = {.name = "", .k = k, .v = v}}, shape);
    const LayerLayout& part = layout.layer(0);
    const cuda::PackedSide k_side = cuda::packed_side(part.k, shape, part.k_offset()),
                           v_side = cuda::packed_side(part.v, shape, part.v_offset());
    const Visibility rule;
    const int n_pages = (tokens + kPageTokens - 1) / kPageTokens;
    const int n_full = rule.sink_pages + rule.recent_pages + 1, n_packed = batch * n_pages;
    const size_t page_bytes = layout.packed_page_bytes();
    const Device<std::byte> canonical(n_packed * page_bytes), packed(n_packed * page_bytes);
    const Device<std::byte> full(static_cast<size_t>(batch) * n_full * layout.full_page_bytes());
    bench::fill_channels(canonical.get(), canonical.size() / 4, static_cast<int>(page_bytes / 4),
                         norms ? kPageTokens : 0, 6 * d, 4 * d);
    bench::fill_full(full.get(), full.size() / 2);
    check(cudaMemcpy(packed.get(), canonical.get(), packed.size(), cudaMemcpyDeviceToDevice), "copy");
    std::vector<cuda::DemotePage> list;
    for (int i = 0; i < n_packed; i++) list.push_back({0, i});
    const Device<cuda::DemotePage> pages(list);
    cuda::launch_order_channels(packed.get(), page_bytes, pages.get(), n_packed, k_side, v_side, n_kv_heads,
                                d, nullptr);
    std::vector<int32_t> tables(2 * static_cast<size_t>(n_packed), -1);
    for (int b = 0; b < batch; b++) {
      int32_t next = b * n_full;
      for (int p = 0; p < n_pages; p++) {
        // slots far from each other
        tables[(2 * b + 1) * size_t(n_pages) + p] =
            static_cast<int32_t>((b * size_t(n_pages) + p) * 7919 % static_cast<size_t>(n_packed));
        if (!rule.packed(n_pages - 1, p)) tables[2 * b * size_t(n_pages) + p] = next++;
      }
    }
    const Device<int32_t> device_tables(tables);
    std::vector<SequenceView> views;
    for (int b = 0; b < batch; b++)
      views.push_back({b, 1, tokens - 1, 0, device_tables.get() + 2 * b * size_t(n_pages),
                       device_tables.get() + (2 * b + 1) * size_t(n_pages)});
    std::vector<float> q_host(static_cast<size_t>(batch) * shape.n_heads * d);
    std::srand(1);
    for (float& x : q_host) x = (std::rand() % 2001 - 800) / 800.0f;
    const Device<float> q(q_host), out(q_host.size()), want(q_host.size());
    const int pairs = cuda::attend_pairs(shape, true, 0);
    const auto plan = cuda::plan_attend(views, shape, rule, {pairs, 132, cuda::PrefillKernel::None});
    const auto plain = cuda::plan_attend(
        views, shape, rule, {cuda::kFormatPairs, 132, cuda::PrefillKernel::None, cuda::kFormatBlocks});
    const Device<cuda::AttendTile> tiles(plan.tiles), plain_tiles(plain.tiles);
    const Device<cuda::AttendSegment> segments(plan.segments), plain_segments(plain.segments);
    const Device<float> partials(std::max<size_t>(1, cuda::partial_bytes(plan, shape, pairs) / 4)),
        plain_partials(std::max<size_t>(1, cuda::partial_bytes(plain, shape, cuda::kFormatPairs) / 4));
    const Device<uint32_t> arrivals(plan.tiles.size() * n_kv_heads);
    check(cudaMemset(arrivals.get(), 0, arrivals.size() * 4), "memset");
    check(cudaMemset(out.get(), 0xff, out.size() * 4), "memset");
    cuda::AttendArgs args{.q = q.get(),
                          .out = out.get(),
                          .tiles = tiles.get(),
                          .n_tiles = plan.n_tiles,
                          .n_kv_heads = n_kv_heads,
                          .q_per_kv = q_per_kv,
                          .head_dim = d,
                          .group = d,
                          .full = {full.get(), layout.full_page_bytes(), layout.full_head_bytes()},
                          .packed = {packed.get(), page_bytes, 0},
                          .softmax_scale = 1.0f / std::sqrt(static_cast<float>(d)),
                          .soft_cap = 0.0f,
                          .segments = segments.get(),
                          .n_blocks = plan.n_blocks,
                          .max_runs = plan.max_runs,
                          .overlaps = false,
                          .partials = partials.get(),
                          .arrivals = arrivals.get(),
                          .prefill_tiles = nullptr,
                          .n_prefill_blocks = 0,
                          .prefill_kernel = cuda::PrefillKernel::None};
    args.channels = {static_cast<int32_t>(k_side.first_head), static_cast<int32_t>(part.k_bytes), norms};
    cuda::AttendArgs formats = args;
    formats.out = want.get(), formats.tiles = plain_tiles.get(), formats.n_tiles = plain.n_tiles;
    formats.segments = plain_segments.get(), formats.n_blocks = plain.n_blocks;
    formats.max_runs = plain.max_runs;
    formats.partials = plain.merges ? plain_partials.get() : nullptr;
    formats.packed = {canonical.get(), page_bytes, 0};
    cuda::launch_attend_channels(args, pairs, nullptr);
    check(cudaDeviceSynchronize(), "attend_channels");
    cuda::launch_attend_formats(formats, k_side, v_side, nullptr);
    check(cudaDeviceSynchronize(), "attend_formats");
    const double error = difference_of(out, want);
    const double ms = timer.median([&] { cuda::launch_attend_channels(args, pairs, nullptr); });
    const double plain_ms =
        timer.median([&] { cuda::launch_attend_formats(formats, k_side, v_side, nullptr); }, 3);
    const double n_packed_read = std::max(0, n_pages - 1 - rule.recent_pages - rule.sink_pages);
    const double bytes =
        batch * (n_packed_read * page_bytes + (n_pages - n_packed_read) * layout.full_page_bytes());
    std::printf(
        "attend %s heads %dx%d d=%d B=%d T=%d: %.4f ms, %.3f GB, %.2f TB/s = %.0f%% of read, error %.1e, "
        "attend_formats %.4f ms, %d blocks\n",
        norms ? "omni2" : "kivi2", n_kv_heads, q_per_kv, d, batch, tokens, ms, bytes / 1e9, bytes / ms / 1e9,
        100 * bytes / ms / read_bandwidth, error, plain_ms, plan.n_blocks);
    if (json)
      std::printf(
          "{\"op\":\"attend\",\"pages\":\"%s\",\"kv_heads\":%d,\"q_per_kv\":%d,\"d\":%d,\"batch\":%d,"
          "\"tokens\":%d,\"ms\":%.5f,\"bytes\":%.0f,\"read_share\":%.4f,\"error\":%.3e}\n",
          norms ? "omni2" : "kivi2", n_kv_heads, q_per_kv, d, batch, tokens, ms, bytes,
          bytes / ms / read_bandwidth, error);
    std::fflush(stdout);
  }

  /// Of all values, to the norm of what they should be.
  static double difference_of(const Device<float>& got_on_device, const Device<float>& expected_on_device) {
    const std::vector<float> got = got_on_device.download(), expected = expected_on_device.download();
    double difference = 0, norm = 0;
    for (size_t i = 0; i < got.size(); i++) {
      difference += (got[i] - expected[i]) * static_cast<double>(got[i] - expected[i]);
      norm += expected[i] * static_cast<double>(expected[i]);
    }
    return std::sqrt(difference / norm);
  }

  /// All pages of `batch` sequences of `tokens`, by coder round, or feedback with three steps and a refit.
  void demote(int batch, int tokens, int n_kv_heads, int d, int clip_k, int clip_v, bool feedback) {
    const PageLayout layout = PageLayout::of_int2({1, n_kv_heads, n_kv_heads, d}, d);
    const int n = batch * (tokens / kPageTokens);
    const Device<std::byte> full(n * layout.full_page_bytes()), packed(n * layout.packed_page_bytes());
    bench::fill_full(full.get(), full.size() / 2);
    std::vector<cuda::DemotePage> list;
    for (int i = 0; i < n; i++) list.push_back({i, n - 1 - i});
    const Device<cuda::DemotePage> pages(list);
    std::vector<float> table(static_cast<size_t>(n_kv_heads) * d * d);
    for (float& x : table) x = (std::rand() % 2001 - 900) / 10000.0f;
    const Device<float> f(table);  // the weights and swept ones may be any of these numbers, too
    const cuda::Pool from{full.get(), layout.full_page_bytes(), layout.full_head_bytes()},
        to{packed.get(), layout.packed_page_bytes(), layout.packed_head_bytes(0)};
    cuda::FeedbackCoder coder{f.get(), f.get(), f.get(), {0.95f, 1.1f, 1.25f}, 3, 1, false};
    const double ms = timer.median(
        [&] {
          if (!feedback)
            return cuda::launch_demote(from, to, pages.get(), n, n_kv_heads, d, d, clip_k, clip_v, 3,
                                       nullptr);
          for (const bool is_v : {false, true}) {
            coder.is_v = is_v;
            cuda::launch_demote_feedback(from, to, pages.get(), n, n_kv_heads, d, d, coder, nullptr);
          }
        },
        feedback ? 3 : 7);
    const double bytes = static_cast<double>(full.size() + packed.size());
    std::printf(
        "demote %s heads %d d=%d B=%d T=%d clips %d/%d: %.3f ms, %.2f GB, %.2f TB/s = %.0f%% of read\n",
        feedback ? "feedback" : "round", n_kv_heads, d, batch, tokens, clip_k, clip_v, ms, bytes / 1e9,
        bytes / ms / 1e9, 100 * bytes / ms / read_bandwidth);
    std::fflush(stdout);
  }
};

}  // namespace

int main(int argc, char** argv) {
  Bench bench;
  std::string only;
  for (int i = 1; i < argc; i++) {
    bench.json = bench.json || !std::strcmp(argv[i], "--json");
    if (i + 1 == argc) break;
    if (!std::strcmp(argv[i], "--only")) only = argv[i + 1];
  }
  const auto wants = [&](const char* part) { return only.empty() || only == part; };
  bench.measure_bandwidth();
  std::printf("an empty kernel %.4f ms\n", bench.timer.median([] { bench::do_nothing(); }));
  const struct {
    int batch, tokens;
  } shapes[] = {{32, 32768}, {1, 131072}, {1, 32768}, {1, 8192}, {8, 32768}, {64, 16384}, {28, 100032}};
  if (wants("decode"))
    for (const auto& s : shapes) bench.attend(s.batch, s.tokens, 8, 4, 128, 1);
  if (only == "one") bench.attend(1, 32768, 8, 4, 128, 1);  // for a profiler
  if (wants("short"))                                       // what one sequence pays before its length counts
    for (const int tokens : {64, 1024, 2048, 4096}) bench.attend(1, tokens, 8, 4, 128, 1);
  if (wants("shapes")) {
    bench.attend(32, 32768, 8, 1, 128, 1);
    bench.attend(32, 32768, 8, 8, 128, 1);
    bench.attend(32, 32768, 4, 16, 128, 1);
    bench.attend(32, 32768, 3, 3, 64, 1);
  }
  if (wants("omni")) {
    bench.attend_channels(32, 32768, 8, 4, 128, true);
    bench.attend_channels(32, 32768, 8, 4, 128, false);
    bench.attend_channels(1, 131072, 8, 4, 128, true);
    bench.attend_channels(1, 32768, 8, 4, 128, true);
    bench.attend_channels(32, 32768, 8, 8, 128, true);
    bench.attend_channels(32, 32768, 3, 3, 64, true);
  }
  if (wants("prefill")) {
    bench.attend(1, 8192, 8, 4, 128, 512);
    bench.attend(1, 32768, 8, 4, 128, 2048);
    bench.attend(1, 32768, 8, 4, 128, 32768);
    bench.attend(1, 32768, 8, 4, 128, 2048, false);
    bench.attend(1, 32768, 8, 4, 128, 32768, false);
  }
  if (wants("linear"))
    for (const int rows : {1, 8, 16})
      for (const auto& [n_in, n_out] : {std::pair{4096, 6144}, {4096, 4096}, {4096, 24576}, {12288, 4096}})
        bench.linear(n_in, n_out, rows);
  if (wants("demote")) {
    bench.demote(32, 32768, 8, 128, 122, 117, false);
    bench.demote(32, 32768, 8, 128, -1, -1, false);
    bench.demote(4, 32768, 8, 128, -1, -1, true);
  }
  return 0;
}
