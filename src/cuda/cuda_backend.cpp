// SPDX-License-Identifier: Apache-2.0
// make_cuda_backend: arguments of the ops checked, planned and sent to the kernels of kernels.h. Nothing here
// waits for the device but download, sync, the page converters, and a scratch buffer that grows.
#include "cuda/cuda_backend.h"

#include <algorithm>
#include <cstring>
#include <tuple>
#include <utility>
#include <vector>

#include "base/float16.h"
#include "base/memory.h"
#include "cuda/attend_plan.h"
#include "cuda/channel_pages.h"
#include "cuda/cold_clock.h"
#include "cuda/cuda_check.h"
#include "cuda/device_memory.h"
#include "cuda/gpu.h"
#include "cuda/kernels.h"
#include "cuda/kv_pools.h"
#include "cuda/linear.h"
#include "cuda/page_order.h"
#include "cuda/recorder.h"
#include "cuda/side_format.h"
#include "cuda/signature.h"
#include "ops/device_extras.h"
#include "quant/page_codec.h"

namespace kv2 {
namespace cuda {
namespace {

const DenseLinear& dense(const Linear& weights) {
  const auto* own = dynamic_cast<const DenseLinear*>(&weights);
  KV2_CHECK(own, "a linear of another backend");
  return *own;
}

void check_head_dim(int head_dim) {
  if (head_dim % 16 != 0 || head_dim > 512)
    throw_error(
        ErrorCode::Unsupported,
        "head_dim {} is not supported on CUDA; supported are multiples of 16 up to 512, with fast attention "
        "for {}",
        head_dim, fmt::join(attend_head_dims(), ", "));
}

FeedbackCoder feedback_coder(const Coder& coder, int head_dim, bool is_v) {
  static_assert(FeedbackSearch::kMaxSteps == std::extent_v<decltype(FeedbackCoder::steps)>);
  if (head_dim > 256 || coder.group % 8 != 0)
    throw_error(
        ErrorCode::Unsupported,
        "coder 'feedback' on CUDA has head_dim up to 256 and groups of a multiple of 8, found {} and {}",
        head_dim, coder.group);
  FeedbackCoder out{coder.tables.f,
                    coder.tables.weight,
                    coder.tables.ones,
                    {},
                    coder.search.n_steps,
                    coder.search.refits,
                    is_v};
  std::copy(coder.search.steps, coder.search.steps + FeedbackSearch::kMaxSteps, out.steps);
  return out;
}

/// For signatures.
enum Op {
  kEmbed,
  kNorm,
  kLinear,
  kRope,
  kTransform,
  kSwiglu,
  kAngles,
  kHeads,
  kAppend,
  kDemote,
  kAttend,
  kCopy,
  kCopyRows
};

class CudaBackend final : public Backend,
                          public OwnMemory,
                          public OwnSideOrder,
                          public StepRecorder,
                          public FusedHeads,
                          public DeviceArgMax,
                          public DeviceClock {
 public:
  explicit CudaBackend(const CudaOptions& options)
      : info_(open_gpu(options.device)),
        linears_(stream_, options.precision != LinearPrecision::F32, info_.n_multiprocessors),
        staging_(stream_),
        recorder_(stream_),
        clock_(stream_) {
    if (options.n_multiprocessors > 0) info_.n_multiprocessors = options.n_multiprocessors;
  }
  ~CudaBackend() override { cudaStreamSynchronize(stream_); }

  std::string describe() const override {
    return fmt::format("cuda: {} ({}.{}, {}), linears {} by cuBLASLt, fast attention for head_dim {}",
                       info_.name, info_.major, info_.minor, format_bytes(info_.memory), linear_precision(),
                       fmt::join(attend_head_dims(), ", "));
  }
  std::string linear_precision() const override { return linears_.bf16() ? "bf16" : "f32"; }

  size_t free_memory() const override {
    size_t free_bytes = 0, total = 0;
    check(cudaMemGetInfo(&free_bytes, &total), "cudaMemGetInfo");
    return free_bytes;
  }
  void run_step(const std::function<void()>& ops) override { recorder_.run(ops); }
  double cold_seconds(const std::function<void()>& ops) override { return clock_.seconds(ops); }
  void read_all(const void* memory, size_t bytes) override { clock_.read_all(memory, bytes); }

  void* allocate(size_t bytes) override { return allocate_device(bytes); }
  void release(void* memory) noexcept override {
    begin_op();
    cudaStreamSynchronize(stream_);
    cudaFree(memory);
  }
  /// Pageable host memory is read before the call returns, so the caller may reuse it.
  void upload(void* device, const void* host, size_t bytes) override {
    begin_op();
    if (bytes) check(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream_), "upload");
  }
  void download(void* host, const void* device, size_t bytes) override {
    if (bytes) check(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream_), "download");
    sync();
  }
  void copy(void* to, const void* from, size_t bytes) override {
    begin_op();
    if (bytes == 0 || recorder_.sign(kCopy, to, from, bytes)) return;
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_), "copy");
  }
  void copy_rows(void* to, size_t to_stride, const void* from, size_t from_stride, size_t row_bytes,
                 int n_rows) override {
    begin_op();
    if (row_bytes == 0 || n_rows == 0) return;
    if (recorder_.sign(kCopyRows, to, to_stride, from, from_stride, row_bytes, n_rows)) return;
    check(cudaMemcpy2DAsync(to, to_stride, from, from_stride, row_bytes, static_cast<size_t>(n_rows),
                            cudaMemcpyDeviceToDevice, stream_),
          "copy_rows");
  }
  void require_formats(const PageLayout& layout) const override {
    if (!layout.packs()) return;
    for (int l = 0; l < layout.shape.n_layers; l++) {
      const LayerLayout& part = layout.layer(l);
      if (part.int2_heads()) continue;
      for (const auto& [name, side] : {std::pair{"K", &part.k}, std::pair{"V", &part.v}})
        if (const std::string why = why_no_kernels(*side); !why.empty())
          throw_error(
              ErrorCode::Unsupported,
              "layer {} stores {} as {}: {}; CUDA kernels read affine codes (naive2, quarot2, oscar2, "
              "kv2, int4, int8) and codes per channel (kivi2, omni2); use --device cpu",
              l, name, kv2::describe(*side), why);
    }
  }
  void sync() override { check(cudaStreamSynchronize(stream_), "an op enqueued before"); }

  std::unique_ptr<Linear> make_linear(const LinearSource& source) override {
    auto linear = std::make_unique<DenseLinear>(source, linears_.bf16());
    linears_.prepare(*linear);
    return linear;
  }
  std::unique_ptr<Linear> make_embedding(const LinearSource& source) override {
    return std::make_unique<DenseLinear>(source, linears_.bf16());
  }
  size_t scratch_bytes(int n_rows, int max_width, const KvShape& shape) const override {
    return linears_.scratch_bytes(n_rows, max_width) + staging_.bytes() + kMaxPartialBytes;
  }

  void embed(const Linear& table, const EmbedParams& p) override {
    begin_op();
    const DenseLinear& t = dense(table);
    for (int r = 0; r < p.n_rows; r++)
      KV2_CHECK(p.tokens[r] >= 0 && p.tokens[r] < t.n_out(), "token {} of a vocabulary of {}", p.tokens[r],
                t.n_out());
    const auto* tokens = put(Staging::Key::Tokens, std::span(p.tokens, p.n_rows));
    if (recorder_.sign(kEmbed, t.weights(), p.out, p.n_rows)) return;
    launch_embed(t.weights(), t.bf16(), t.padded(), t.n_in(), tokens, p.out, p.n_rows, stream_);
    check_launch("embed");
  }
  void rms_norm(const RmsNormParams& p) override {
    // narrow rows are heads, and no linear's inputs
    const LinearInputs in = leave_rounded(p.out, p.n_rows, p.width > 256 ? p.width : 0);
    if (recorder_.sign(kNorm, p.in, p.weight, p.out, p.n_rows, p.width, p.epsilon, in.memory)) return;
    launch_rms_norm(p.in, p.weight, p.out, p.n_rows, p.width, p.epsilon, in, stream_);
    check_launch("rms_norm");
  }
  void linear(const Linear& weights, const LinearParams& p) override {
    const DenseLinear& w = dense(weights);
    const Rounded known = begin_op().rounded;
    const bool ready = known.in.memory && known.values == p.in && known.n_rows == p.n_rows &&
                       known.width == w.n_in() && w.bf16();
    if (recorder_.sign(kLinear, w.weights(), w.bias(), w.n_in(), w.n_out(), p.in, p.out, p.n_rows,
                       p.accumulate, ready, linears_.inputs()))
      return;
    linears_.multiply(w, p, ready ? &known.in : nullptr);
  }
  void rope(const RopeParams& p) override {
    begin_op();
    const auto* positions = put(Staging::Key::Positions, std::span(p.positions, p.n_rows));
    const auto* frequencies = put(Staging::Key::Frequencies, std::span(p.inv_frequency, p.head_dim / 2));
    if (recorder_.sign(kRope, p.x, p.n_rows, p.n_heads, p.head_dim, p.pairing)) return;
    launch_rope(p.x, positions, frequencies, p.n_rows, p.n_heads, p.head_dim,
                p.pairing == RopePairing::Adjacent, stream_);
    check_launch("rope");
  }
  void transform(const TransformParams& p) override {
    const TransformRows rows{p.in,     p.out,     p.matrix,     p.mean,     p.add,
                             p.n_rows, p.n_heads, p.n_kv_heads, p.head_dim, p.transpose};
    const bool few = transform_few_fits(rows);
    const LinearInputs in = leave_rounded(p.out, p.n_rows, few ? p.n_heads * p.head_dim : 0);
    if (recorder_.sign(kTransform, p.in, p.out, p.matrix, p.mean, p.add, p.n_rows, p.n_heads, p.n_kv_heads,
                       p.head_dim, p.transpose, in.memory))
      return;
    if (few)
      launch_transform_few(rows, in, stream_);
    else
      launch_transform(rows, stream_);
    check_launch("transform");
  }
  void swiglu(const SwigluParams& p) override {
    const LinearInputs in = leave_rounded(p.out, p.n_rows, p.width);
    if (recorder_.sign(kSwiglu, p.gate, p.up, p.out, p.n_rows, p.width, p.stride, in.memory)) return;
    launch_swiglu(p.gate, p.up, p.out, p.n_rows, p.width, p.stride, in, stream_);
    check_launch("swiglu");
  }

  bool heads(const HeadsParams& p) override {
    const KvShape& shape = p.kv.layout.shape;
    if (!heads_fit(p.n_rows, shape.head_dim)) return false;
    begin_op();
    const std::vector<AppendRow> rows = append_rows(p.sequences);
    KV2_CHECK(static_cast<int>(rows.size()) == p.n_rows, "{} rows of sequences in {}", rows.size(), p.n_rows);
    const auto* device = put(Staging::Key::Append, std::span<const AppendRow>(rows));
    const auto sign_of = [](const HeadsParams::Side& s) { return std::tuple(s.norm, s.matrix, s.mean); };
    const float2* angles = angles_of(rows, device, std::span(p.inv_frequency, shape.head_dim / 2));
    if (recorder_.sign(kHeads, angles, p.qkv, p.q_out, signature(p.kv, p.layer), p.n_rows, p.epsilon,
                       p.pairing, sign_of(p.q), sign_of(p.k), sign_of(p.v)))
      return before_.heads = true;
    const auto side = [](const HeadsParams::Side& s) { return HeadRows::Side{s.norm, s.matrix, s.mean}; };
    before_.heads = true;
    launch_heads({.qkv = p.qkv,
                  .q_out = p.q_out,
                  .rows = device,
                  .angles = angles,
                  .q = side(p.q),
                  .k = side(p.k),
                  .v = side(p.v),
                  .full = full_pool(p.kv, p.layer),
                  .n_rows = p.n_rows,
                  .stride = (shape.n_heads + 2 * shape.n_kv_heads) * shape.head_dim,
                  .n_heads = shape.n_heads,
                  .n_kv_heads = shape.n_kv_heads,
                  .head_dim = shape.head_dim,
                  .epsilon = p.epsilon,
                  .adjacent = p.pairing == RopePairing::Adjacent,
                  .rows_each = 0,
                  .q_rows_each = 0,
                  .blocks = 0,
                  .q_blocks = 0},
                 stream_);
    check_launch("heads");
    return true;
  }
  void arg_max(const float* rows, int n_rows, int width, int32_t* best) override {
    const size_t bytes = n_rows * sizeof(uint64_t);
    auto* keys = static_cast<uint64_t*>(best_here_.reserve(bytes));
    auto* device = static_cast<uint64_t*>(best_.reserve(bytes));
    launch_arg_max(rows, n_rows, width, device, stream_);
    check_launch("arg_max");
    download(keys, device, bytes);
    for (int i = 0; i < n_rows; i++)
      best[i] = keys[i] ? static_cast<int32_t>(~static_cast<uint32_t>(keys[i])) : -1;
  }

  void append(const AppendParams& p) override {
    const KvShape& shape = p.kv.layout.shape;
    check_head_dim(shape.head_dim);
    begin_op();
    const std::vector<AppendRow> rows = append_rows(p.sequences);
    if (rows.empty()) return;
    const auto* device = put(Staging::Key::Append, std::span<const AppendRow>(rows));
    if (recorder_.sign(kAppend, p.k, p.v, signature(p.kv, p.layer), rows.size())) return;
    launch_append(p.k, p.v, full_pool(p.kv, p.layer), device, static_cast<int>(rows.size()), shape.n_kv_heads,
                  shape.head_dim, stream_);
    check_launch("append");
  }

  void demote(const DemoteParams& p) override {
    begin_op();
    const KvShape& shape = p.kv.layout.shape;
    check_head_dim(shape.head_dim);
    KV2_CHECK(p.kv.layout.packs(), "demote needs a codec");
    const LayerLayout& part = p.kv.layout.layer(p.layer);
    KV2_CHECK(p.k.group == part.k.group && p.v.group == part.v.group, "coder and layout differ in group");
    for (const Coder* coder : {&p.k, &p.v})
      if (coder->kind == CoderKind::Round && coder->range != RangeRule::MinMax)
        throw_error(ErrorCode::Unsupported,
                    "range=integer and range=lloyd have no CUDA kernels; use range=minmax or --device cpu");
    if (!part.int2_heads() && (p.k.kind == CoderKind::Feedback || p.v.kind == CoderKind::Feedback))
      throw_error(
          ErrorCode::Unsupported,
          "coder 'feedback' has CUDA kernels for 2 bits with an offset on both sides alone; layer {} is "
          "stored as K {} and V {}; use --device cpu",
          p.layer, kv2::describe(part.k), kv2::describe(part.v));
    if (p.pages.empty()) return;
    std::vector<DemotePage> pages;
    for (const Demotion& d : p.pages) pages.push_back({d.full_page, d.packed_page});
    const auto* device = put(Staging::Key::Demote, std::span<const DemotePage>(pages));
    if (recorder_.sign(kDemote, signature(p.kv, p.layer), pages.size(), signature(p.k), signature(p.v)))
      return;
    const Pool full = full_pool(p.kv, p.layer);
    const int n = static_cast<int>(pages.size()), d = shape.head_dim, group = part.k.group;
    if (!part.int2_heads()) {
      const Sides sides = sides_of(p.kv, p.layer);
      for (const bool is_v : {false, true})
        launch_demote_side(full, p.kv.packed, p.kv.layout.packed_page_bytes(), device, n,
                           is_v ? sides.v : sides.k, shape.n_kv_heads, d,
                           is_v ? p.v.clip_index : p.k.clip_index, is_v, stream_);
      if (in_channel_order(part, shape))
        launch_order_channels(p.kv.packed, p.kv.layout.packed_page_bytes(), device, n, sides.k, sides.v,
                              shape.n_kv_heads, d, stream_);
      return check_launch("demote");
    }
    const Pool packed = packed_pool(p.kv, p.layer);
    const bool round_k = p.k.kind == CoderKind::Round, round_v = p.v.kind == CoderKind::Round;
    if (round_k || round_v)
      launch_demote(full, packed, device, n, shape.n_kv_heads, d, group, p.k.clip_index, p.v.clip_index,
                    round_k + 2 * round_v, stream_);
    for (const Coder* coder : {&p.k, &p.v})
      if (coder->kind == CoderKind::Feedback)
        launch_demote_feedback(full, packed, device, n, shape.n_kv_heads, d, group,
                               feedback_coder(*coder, d, coder == &p.v), stream_);
    check_launch("demote");
  }

  void attend(const AttendParams& p) override {
    // Then nothing but q and the last rows of K and V is younger than the kernel before it.
    const bool overlaps = begin_op().heads;
    const KvShape& shape = p.kv.layout.shape;
    check_head_dim(shape.head_dim);
    const bool reads_packed = p.kv.rule.quantized && p.kv.layout.packs();
    const bool channels = reads_packed && in_channel_order(p.kv.layout.layer(p.layer), shape);
    const bool in_sides = reads_packed && !channels && !p.kv.layout.layer(p.layer).int2_heads();
    const int group = reads_packed && !in_sides && !channels ? p.kv.layout.int2(p.layer).group
                                                             : default_group(shape.head_dim);
    const bool fast = channels || (!in_sides && attend_has(shape.head_dim, group));
    int n_rows = 0, most_rows = 0;
    for (const SequenceView& s : p.sequences) n_rows += s.n_rows, most_rows = std::max(most_rows, s.n_rows);
    const bool one_each = most_rows <= 1;
    const int pairs = in_sides ? kFormatPairs : attend_pairs(shape, one_each, p.soft_cap);
    const PrefillKernel prefill =
        in_sides || channels ? PrefillKernel::None : prefill_kernel_for(shape.head_dim, group, p.soft_cap);
    const AttendPlan& plan =
        planner_.plan(p.sequences, shape, p.kv.rule,
                      {pairs, info_.n_multiprocessors, prefill, in_sides ? kFormatBlocks : 0});
    if (plan.tiles.empty()) return;
    // one query each: results leave the kernel as the next product wants them
    const bool last_form = p.feeds_linear && fast && one_each && plan.n_prefill_blocks == 0;
    const LinearInputs rounded = leave_rounded(p.out, n_rows, last_form ? shape.n_heads * shape.head_dim : 0);
    const auto* tiles = put(Staging::Key::Attend, std::span<const AttendTile>(plan.tiles), plan.version);
    const auto* segments =
        put(Staging::Key::Segments, std::span<const AttendSegment>(plan.segments), plan.version);
    if (recorder_.sign(kAttend, p.q, p.out, signature(p.kv, p.layer), plan.tiles.size(), plan.n_tiles, pairs,
                       plan.n_prefill_blocks, static_cast<int>(plan.prefill_kernel), plan.n_blocks,
                       plan.max_runs, plan.merges, overlaps, p.softmax_scale, p.soft_cap, partials_.data(),
                       arrivals_.data(), rounded.memory))
      return;
    const Pool packed = in_sides   ? Pool{p.kv.packed, p.kv.layout.packed_page_bytes(), 0}
                        : channels ? channels_pool(p.kv, p.layer)
                                   : packed_pool(p.kv, p.layer);
    AttendArgs args{.q = p.q,
                    .out = p.out,
                    .tiles = tiles,
                    .n_tiles = plan.n_tiles,
                    .n_kv_heads = shape.n_kv_heads,
                    .q_per_kv = shape.q_per_kv(),
                    .head_dim = shape.head_dim,
                    .group = group,
                    .full = full_pool(p.kv, p.layer),
                    .packed = packed,
                    .softmax_scale = p.softmax_scale,
                    .soft_cap = p.soft_cap,
                    .segments = segments,
                    .n_blocks = plan.n_blocks,
                    .max_runs = plan.max_runs,
                    .overlaps = overlaps,
                    .partials = nullptr,
                    .arrivals = nullptr,
                    .prefill_tiles = tiles + plan.n_tiles,
                    .n_prefill_blocks = plan.n_prefill_blocks,
                    .prefill_kernel = plan.prefill_kernel};
    args.rounded = rounded;
    if ((fast || in_sides) && plan.merges)
      args.partials = static_cast<float*>(partials_.reserve(partial_bytes(plan, shape, pairs)));
    if (fast && plan.merges) args.arrivals = arrivals(static_cast<size_t>(plan.n_tiles) * shape.n_kv_heads);
    if (in_sides) {
      const Sides sides = sides_of(p.kv, p.layer);
      launch_attend_formats(args, sides.k, sides.v, stream_);
    } else if (channels) {
      const Sides sides = sides_of(p.kv, p.layer);
      const LayerLayout& part = p.kv.layout.layer(p.layer);
      args.channels = {static_cast<int32_t>(sides.k.first_head), static_cast<int32_t>(part.k_bytes),
                       sides.k.norm};
      launch_attend_channels(args, pairs, stream_);
    } else if (fast) {
      launch_attend(args, pairs, stream_);
    } else {
      launch_attend_generic(args, stream_);
    }
    check_launch("attend");
  }

  void export_full(const void* page, int head_dim, std::span<std::byte> canonical) override {
    std::vector<std::byte> own(canonical.size());
    KV2_CHECK(canonical.size() == sizeof(bf16) * 2 * kPageTokens * static_cast<size_t>(head_dim));
    download(own.data(), page, own.size());
    full_to_canonical(own.data(), head_dim, canonical.data());
  }
  void import_full(void* page, int head_dim, std::span<const std::byte> canonical) override {
    std::vector<std::byte> own(canonical.size());
    KV2_CHECK(canonical.size() == sizeof(bf16) * 2 * kPageTokens * static_cast<size_t>(head_dim));
    full_from_canonical(canonical.data(), head_dim, own.data());
    upload(page, own.data(), own.size());
  }
  void sides_to_canonical(const LayerLayout& layer, const KvShape& shape, std::byte* part) const override {
    if (in_channel_order(layer, shape)) channels_to_canonical(layer, shape, part);
  }
  void sides_from_canonical(const LayerLayout& layer, const KvShape& shape, std::byte* part) const override {
    if (in_channel_order(layer, shape)) channels_from_canonical(layer, shape, part);
  }
  void export_packed(const void* page, const Int2Layout& layout, std::span<std::byte> canonical) override {
    std::vector<std::byte> own(canonical.size());
    KV2_CHECK(canonical.size() == layout.bytes());
    download(own.data(), page, own.size());
    packed_to_canonical(own.data(), layout, canonical.data());
  }
  void import_packed(void* page, const Int2Layout& layout, std::span<const std::byte> canonical) override {
    std::vector<std::byte> own(canonical.size());
    KV2_CHECK(canonical.size() == layout.bytes());
    packed_from_canonical(canonical.data(), layout, own.data());
    upload(page, own.data(), own.size());
  }

 private:
  template <class T>
  const T* put(Staging::Key key, std::span<const T> values, uint64_t version = 0) {
    if (recorder_.active())
      return static_cast<const T*>(
          recorder_.put(static_cast<int>(key), values.data(), values.size_bytes(), version));
    return staging_.put(key, values, version);
  }
  /// For ops whose output may be a linear's input: where it is to be left rounded as well, and the note of
  /// it.
  LinearInputs leave_rounded(const float* values, int n_rows, int width) {
    begin_op();
    if (width > 0) before_.rounded = {linears_.inputs_for(n_rows, width), values, n_rows, width};
    return before_.rounded.in;
  }
  /// RoPE's angles of a step's rows: computed by the first layer of a recording that asks.
  const float2* angles_of(std::span<const AppendRow> rows, const AppendRow* on_device,
                          std::span<const float> frequencies) {
    auto* angles = static_cast<float2*>(angles_.reserve(rows.size() * frequencies.size() * sizeof(float2)));
    if (known_angles_.are(recorder_.pass(), rows, frequencies)) return angles;
    known_angles_ = {recorder_.pass(), {}, {frequencies.begin(), frequencies.end()}};
    for (const AppendRow& row : rows) known_angles_.positions.push_back(row.pos);
    const float* inv_frequency = put(Staging::Key::Frequencies, frequencies);
    if (recorder_.sign(kAngles, angles, rows.size(), frequencies.size())) return angles;
    launch_rope_angles(on_device, inv_frequency, angles, static_cast<int>(rows.size()),
                       static_cast<int>(frequencies.size()), stream_);
    check_launch("rope_angles");
    return angles;
  }
  uint32_t* arrivals(size_t n) {
    const size_t before = arrivals_.bytes();
    auto* counters = static_cast<uint32_t*>(arrivals_.reserve(std::max(n * sizeof(uint32_t), size_t{65536})));
    if (arrivals_.bytes() != before)
      check(cudaMemsetAsync(counters, 0, arrivals_.bytes(), stream_), "cudaMemset");
    return counters;
  }

  struct Angles {
    uint64_t pass = 0;
    std::vector<int64_t> positions;
    std::vector<float> frequencies;
    bool are(uint64_t asked_pass, std::span<const AppendRow> rows, std::span<const float> asked) const {
      return pass == asked_pass &&
             std::equal(rows.begin(), rows.end(), positions.begin(), positions.end(),
                        [](const AppendRow& row, int64_t position) { return row.pos == position; }) &&
             std::equal(asked.begin(), asked.end(), frequencies.begin(), frequencies.end());
    }
  };
  struct Rounded {
    LinearInputs in;
    const float* values = nullptr;
    int n_rows = 0, width = 0;
  };
  /// What an op may want to know of the one before it: what that left rounded for a linear, and whether it
  /// was heads().
  struct Before {
    Rounded rounded;
    bool heads = false;
  };
  /// At the begin of every op.
  Before begin_op() noexcept { return std::exchange(before_, {}); }

  DeviceInfo info_;
  Stream stream_;
  Linears linears_;
  Staging staging_;
  Recorder recorder_;
  ColdClock clock_;
  Before before_;
  AttendPlanner planner_;
  Angles known_angles_;
  Buffer partials_, arrivals_, best_, angles_;
  HostBuffer best_here_;
};

}  // namespace
}  // namespace cuda

std::unique_ptr<Backend> make_cuda_backend(const CudaOptions& options) {
  return std::make_unique<cuda::CudaBackend>(options);
}

}  // namespace kv2
