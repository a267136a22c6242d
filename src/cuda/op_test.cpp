// SPDX-License-Identifier: Apache-2.0
// Every op case and every invariance case of src/ops on the CUDA backend, and the page converters. Needs a
// GPU: where there is none, the tests say so and are skipped by name.
#include <gtest/gtest.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "cuda/cuda_backend.h"
#include "kv2/error.h"
#include "ops/cases/inputs.h"
#include "ops/cases/page_world.h"
#include "ops/device_extras.h"
#include "ops/op_case.h"
#include "quant/int2/encode_head.h"

namespace kv2 {
namespace {

/// The cases keep tables of pages in host memory; a GPU backend reads them on the device, where the cache
/// puts them. Everything else goes straight through.
class TablesOnDevice final : public Backend, public OwnSideOrder {
 public:
  explicit TablesOnDevice(std::unique_ptr<Backend> backend) : b_(std::move(backend)) {}

  std::string describe() const override { return b_->describe(); }
  std::string linear_precision() const override { return b_->linear_precision(); }
  void* allocate(size_t bytes) override { return b_->allocate(bytes); }
  void release(void* memory) noexcept override { b_->release(memory); }
  void upload(void* device, const void* host, size_t bytes) override { b_->upload(device, host, bytes); }
  void download(void* host, const void* device, size_t bytes) override { b_->download(host, device, bytes); }
  void copy(void* to, const void* from, size_t bytes) override { b_->copy(to, from, bytes); }
  void sync() override { b_->sync(); }
  std::unique_ptr<Linear> make_linear(const LinearSource& s) override { return b_->make_linear(s); }
  std::unique_ptr<Linear> make_embedding(const LinearSource& s) override { return b_->make_embedding(s); }
  size_t scratch_bytes(int n, int w, const KvShape& s) const override { return b_->scratch_bytes(n, w, s); }
  void embed(const Linear& table, const EmbedParams& p) override { b_->embed(table, p); }
  void rms_norm(const RmsNormParams& p) override { b_->rms_norm(p); }
  void linear(const Linear& weights, const LinearParams& p) override { b_->linear(weights, p); }
  void rope(const RopeParams& p) override { b_->rope(p); }
  void transform(const TransformParams& p) override { b_->transform(p); }
  void demote(const DemoteParams& p) override { b_->demote(p); }
  void swiglu(const SwigluParams& p) override { b_->swiglu(p); }
  void append(const AppendParams& p) override {
    AppendParams on_device = p;
    const auto sequences = upload_tables(p.sequences);
    on_device.sequences = sequences;
    b_->append(on_device);
    b_->sync();
  }
  void attend(const AttendParams& p) override {
    AttendParams on_device = p;
    const auto sequences = upload_tables(p.sequences);
    on_device.sequences = sequences;
    b_->attend(on_device);
    b_->sync();
  }
  void export_full(const void* page, int d, std::span<std::byte> out) override {
    b_->export_full(page, d, out);
  }
  void import_full(void* page, int d, std::span<const std::byte> in) override {
    b_->import_full(page, d, in);
  }
  void export_packed(const void* page, const Int2Layout& l, std::span<std::byte> out) override {
    b_->export_packed(page, l, out);
  }
  void import_packed(void* page, const Int2Layout& l, std::span<const std::byte> in) override {
    b_->import_packed(page, l, in);
  }
  void sides_to_canonical(const LayerLayout& l, const KvShape& s, std::byte* part) const override {
    dynamic_cast<const OwnSideOrder&>(*b_).sides_to_canonical(l, s, part);
  }
  void sides_from_canonical(const LayerLayout& l, const KvShape& s, std::byte* part) const override {
    dynamic_cast<const OwnSideOrder&>(*b_).sides_from_canonical(l, s, part);
  }

 private:
  std::vector<SequenceView> upload_tables(std::span<const SequenceView> sequences) {
    std::vector<int32_t> all;
    std::vector<SequenceView> views(sequences.begin(), sequences.end());
    for (const SequenceView& s : sequences)
      for (const int32_t* table : {s.full_pages, s.packed_pages}) {
        const int64_t n = (s.first_pos + std::max(s.n_rows, 1) - 1) / kPageTokens + 1;
        all.insert(all.end(), table, table + n);
      }
    tables_ = std::make_unique<cases::DeviceArray<int32_t>>(*b_, std::span<const int32_t>(all));
    const int32_t* at = tables_->data();
    for (SequenceView& s : views) {
      const int64_t n = (s.first_pos + std::max(s.n_rows, 1) - 1) / kPageTokens + 1;
      s.full_pages = at;
      s.packed_pages = at + n;
      at += 2 * n;
    }
    return views;
  }

  std::unique_ptr<Backend> b_;
  std::unique_ptr<cases::DeviceArray<int32_t>> tables_;
};

/// nullptr where there is no GPU.
std::unique_ptr<Backend> make_backend(LinearPrecision precision, int n_multiprocessors = 0) {
  try {
    return std::make_unique<TablesOnDevice>(
        make_cuda_backend({.device = 0, .precision = precision, .n_multiprocessors = n_multiprocessors}));
  } catch (const Error& e) {
    if (e.code() != ErrorCode::Unsupported) throw;
    std::printf("[   note   ] %s\n", e.what());
    return nullptr;
  }
}

class CudaOp : public testing::TestWithParam<std::string> {};

TEST_P(CudaOp, AgreesWithTheReference) {
  Oracle oracle;
  for (const LinearPrecision precision : {LinearPrecision::Bf16, LinearPrecision::F32}) {
    const auto backend = make_backend(precision, GetParam() == "attend" ? 1 : 0);  // every kernel is used
    if (!backend) GTEST_SKIP() << "no GPU";
    double worst = 0;
    for (OpCase c : op_cases(GetParam())) {
      // Tensor cores cut the sum of a step to about 24 bits towards zero where the host rounds to nearest.
      if (c.op == "linear") c.bound *= 4;
      // q meets codes in 16-bit fixed point of its largest value: logits are off by up to 30 times what f32
      // does to them. Softmax weights do, too, of a page's largest: rows that average many near-equal tokens
      // have small norms and are off by up to 3e-4 of them (weights in bf16: 3e-3).
      if (c.op == "attend") c.bound = 5e-4 + 30 * (c.bound - 1e-5);
      try {
        EXPECT_EQ(check_case(c, *backend, oracle, &worst), "");
      } catch (const Error& e) {  // some formats have no kernels
        EXPECT_TRUE(c.other_format && e.code() == ErrorCode::Unsupported) << c.name << ": " << e.what();
        std::printf("[  refused ] %s\n", c.name.c_str());
      }
    }
    std::printf("[  worst   ] %s, %s: %.3f of the bound\n", GetParam().c_str(),
                backend->linear_precision().c_str(), worst);
    if (GetParam() != "linear" && GetParam() != "embed") break;  // nothing else depends on it
  }
}

INSTANTIATE_TEST_SUITE_P(All, CudaOp, testing::ValuesIn(op_names()),
                         [](const auto& info) { return info.param; });

class CudaInvariance : public testing::TestWithParam<std::string> {};

TEST_P(CudaInvariance, SameBitsAloneInChunksAndInBatches) {
  for (const LinearPrecision precision : {LinearPrecision::Bf16, LinearPrecision::F32}) {
    const auto backend = make_backend(precision);
    if (!backend) GTEST_SKIP() << "no GPU";
    // on one multiprocessor pages of many queries go through prefill_kernel, however short the prompt
    const auto small = make_backend(precision, 1);
    for (const InvarianceCase& c : invariance_cases(GetParam(), 513)) {
      try {
        EXPECT_EQ(check_invariance(c, {backend.get(), small.get()}), "") << backend->linear_precision();
      } catch (const Error& e) {
        EXPECT_TRUE(c.other_format && e.code() == ErrorCode::Unsupported) << c.name << ": " << e.what();
      }
    }
    if (GetParam() != "linear") break;
  }
}

INSTANTIATE_TEST_SUITE_P(All, CudaInvariance, testing::Values("linear", "attend", "append"),
                         [](const auto& info) { return info.param; });

struct FeedbackCase {
  int d, group, n_steps, refits;
};

/// Any numbers do as tables where only bits are compared; these have the size of real ones.
struct HostTables {
  std::vector<float> f, weight, ones;
  HostTables(cases::Random& random, int n_kv_heads, const FeedbackCase& c) {
    f = random.normals(static_cast<size_t>(n_kv_heads) * c.d * c.d, 0.01f, 0.08f);
    weight = random.normals(static_cast<size_t>(n_kv_heads) * c.d, 1.0f, 0.1f);
    ones = random.normals(static_cast<size_t>(n_kv_heads) * (c.d / c.group) * c.d, 0.5f, 0.3f);
  }
};

void check_feedback(Backend& backend, const FeedbackCase& c) {
  constexpr int kHeads = 2, kPages = 3, kSlots = 4;
  const PageLayout layout = PageLayout::of_int2({1, kHeads, kHeads, c.d}, c.group);
  const Int2Layout packed_layout{c.d, c.group};
  cases::Random random(c.d * 100 + c.group + c.refits);
  const cases::DeviceArray<std::byte> full(backend, kSlots * layout.full_page_bytes()),
      packed(backend, kSlots * layout.packed_page_bytes());
  Coder coders[2];
  std::vector<HostTables> host;
  std::vector<cases::DeviceArray<float>> device;
  for (Coder& coder : coders) {
    const HostTables& t = host.emplace_back(random, kHeads, c);
    coder = {.kind = CoderKind::Feedback, .group = c.group, .tables = {}, .search = {}};
    const float steps[] = {0.95f, 1.1f, 1.25f, 0.8f};
    std::copy(steps, steps + c.n_steps, coder.search.steps);
    coder.search.n_steps = c.n_steps;
    coder.search.refits = c.refits;
    for (const auto* values : {&t.f, &t.weight, &t.ones})
      device.push_back(cases::on_device(backend, *values));
    coder.tables = {device[device.size() - 3].data(), device[device.size() - 2].data(), device.back().data()};
  }
  std::vector<std::vector<std::byte>> rows;
  std::vector<Demotion> demotions;
  for (int page = 0; page < kPages; page++) {
    demotions.push_back({page, kSlots - 1 - page});
    for (int h = 0; h < kHeads; h++) {
      std::vector<std::byte>& bytes = rows.emplace_back(layout.full_head_bytes());
      auto* x = reinterpret_cast<bf16*>(bytes.data());
      for (int i = 0; i < 2 * kPageTokens * c.d; i++) x[i] = to_bf16(random.normal(0.4f, 1.0f));
      for (int i = 0; i < c.d; i++) x[5 * c.d + i] = to_bf16(0.75f), x[9 * c.d + i] = {0};
      x[7 * c.d + 3] = to_bf16(3e38f), x[8 * c.d + 1] = to_bf16(NAN), x[11 * c.d] = to_bf16(-1e-30f);
      backend.import_full(full.data() + page * layout.full_page_bytes() + layout.full_offset(0, h), c.d,
                          bytes);
    }
  }
  const KvView view{layout, full.data(), packed.data(), {}};
  backend.demote({0, coders[0], coders[1], view, demotions});
  backend.sync();
  for (int page = 0; page < kPages; page++)
    for (int h = 0; h < kHeads; h++) {
      std::vector<std::byte> got(packed_layout.bytes()), want(packed_layout.bytes());
      backend.export_packed(packed.data() + demotions[page].packed_page * layout.packed_page_bytes() +
                                layout.packed_offset(0, h),
                            packed_layout, got);
      const auto* x = reinterpret_cast<const bf16*>(rows[page * kHeads + h].data());
      for (int side = 0; side < 2; side++) {
        Coder coder = coders[side];
        coder.tables = {host[side].f.data(), host[side].weight.data(), host[side].ones.data()};
        int2::encode_head_reference(
            x + side * kPageTokens * c.d, c.d, c.d, coder, h,
            reinterpret_cast<uint8_t*>(want.data() +
                                       (side ? packed_layout.v_codes() : packed_layout.k_codes())),
            reinterpret_cast<fp16*>(want.data() +
                                    (side ? packed_layout.v_params() : packed_layout.k_params())));
      }
      EXPECT_TRUE(got == want) << "d=" << c.d << " group=" << c.group << " steps=" << c.n_steps
                               << " refits=" << c.refits << " page " << page << " head " << h;
    }
}

TEST(CudaFeedback, BitsAreThoseOfTheSpecification) {
  const auto backend = make_backend(LinearPrecision::Auto);
  if (!backend) GTEST_SKIP() << "no GPU";
  for (const FeedbackCase& c : {FeedbackCase{128, 128, 3, 1},
                                {64, 64, 3, 1},
                                {128, 128, 1, 0},
                                {128, 128, 4, 2},
                                {64, 16, 2, 1},
                                {80, 80, 3, 1},
                                {96, 48, 2, 2},
                                {256, 128, 3, 1}})
    check_feedback(*backend, c);
}

TEST(CudaSteps, RecordedStepsDoWhatPlainOnesDo) {
  std::unique_ptr<Backend> backend;
  try {
    backend = make_cuda_backend({.device = 0, .precision = LinearPrecision::Auto});
  } catch (const Error& e) {
    if (e.code() != ErrorCode::Unsupported) throw;
    GTEST_SKIP() << "no GPU: " << e.what();
  }
  constexpr int kHeads = 3, kHeadDim = 64;
  cases::Random random(4);
  const std::vector<float> start = random.normals(4 * kHeads * kHeadDim, 0.0f, 1.0f);
  const std::vector<float> frequencies = random.normals(kHeadDim / 2, 0.5f, 0.2f);
  const auto x = cases::on_device(*backend, start);
  for (int step = 0; step < 12; step++) {
    const int n_rows = step % 3 == 2 ? 2 : 4;  // two kinds of steps, in turns
    std::vector<int64_t> positions;
    for (int i = 0; i < n_rows; i++) positions.push_back(100 * step + i);
    const auto rotate = [&] {  // twice, with positions that differ inside a step, too
      for (int shift : {0, 5000}) {
        std::vector<int64_t> shifted = positions;
        for (int64_t& p : shifted) p += shift;
        backend->rope(
            {x.data(), shifted.data(), frequencies.data(), n_rows, kHeads, kHeadDim, RopePairing::Halves});
      }
    };
    backend->upload(x.data(), start.data(), start.size() * sizeof(float));
    rotate();
    const std::vector<float> want = x.download();
    backend->upload(x.data(), start.data(), start.size() * sizeof(float));
    run_step(*backend, rotate);
    EXPECT_EQ(x.download(), want) << "step " << step;
    EXPECT_NE(want, start);
  }
}

/// A cache made where another was, with the same addresses and sizes, but other constants.
TEST(CudaSteps, OtherConstantsAreAnotherStep) {
  const auto backend = make_backend(LinearPrecision::Auto);
  if (!backend) GTEST_SKIP() << "no GPU";
  const auto world = std::make_shared<const cases::PageWorld>(
      cases::WorldSpec{.shape = {1, 4, 2, 64}, .group = 64, .rule = {1, 1, true}, .n_tokens = {640}});
  const cases::DevicePages pages(*backend, world);
  pages.fill_full();
  std::vector<Demotion> demotions;
  for (int page = 0; page < 10; page++)
    demotions.push_back({world->full_slot(0, page), world->packed_slot(0, page)});
  cases::Random random(11);
  const auto f = cases::on_device(*backend, random.normals(size_t{2} * 64 * 64, 0.0f, 0.1f)),
             ones = cases::on_device(*backend, std::vector<float>(128, 1.0f));
  Coder round{.kind = CoderKind::Round, .group = 64, .clip_index = 61};
  Coder feedback{.kind = CoderKind::Feedback, .group = 64};
  feedback.tables = {f.data(), ones.data(), ones.data()};
  feedback.search = {.steps = {1.2f}, .n_steps = 1, .refits = 1};
  std::vector<Coder> coders = {round, round, feedback, feedback, feedback};
  coders[1].clip_index = 50;
  coders[3].search.refits = 0;
  coders[4].search.steps[0] = 0.9f;
  std::vector<std::vector<std::byte>> codes;
  for (const Coder& coder : coders) {
    const auto demote = [&] { backend->demote({0, coder, coder, pages.view(), demotions}); };
    demote();
    const std::vector<std::byte> want = pages.export_all_packed();
    for (const std::vector<std::byte>& other : codes) EXPECT_NE(other, want);
    codes.push_back(want);
    for (int step = 0; step < 3; step++) {  // plain, recorded, replayed
      if (codes.size() > 1)                 // what the step before this one may have left
        backend->demote({0, coders[codes.size() - 2], coders[codes.size() - 2], pages.view(), demotions});
      run_step(*backend, demote);
      EXPECT_EQ(pages.export_all_packed(), want) << "coder " << codes.size() - 1 << ", step " << step;
    }
  }
}

TEST(CudaPages, CanonicalBytesSurviveTheRoundTripThroughThePrivateLayout) {
  const auto backend = make_backend(LinearPrecision::Auto);
  if (!backend) GTEST_SKIP() << "no GPU";
  cases::Random random(8);
  const auto random_bytes = [&](size_t n) {
    std::vector<std::byte> bytes(n);
    for (std::byte& b : bytes) b = static_cast<std::byte>(random.next());
    return bytes;
  };
  for (const int d : {64, 80, 96, 112, 128, 192, 256}) {
    const std::vector<std::byte> full = random_bytes(size_t{4} * kPageTokens * d);
    const cases::DeviceArray<std::byte> page(*backend, full.size());
    std::vector<std::byte> back(full.size());
    backend->import_full(page.data(), d, full);
    backend->export_full(page.data(), d, back);
    EXPECT_EQ(back, full) << "full, d = " << d;
    for (const int group : {d, d / 2, 16}) {
      if (d % group != 0 || group % 4 != 0) continue;
      const Int2Layout layout{d, group};
      const std::vector<std::byte> packed = random_bytes(layout.bytes());
      back.assign(packed.size(), std::byte{0});
      backend->import_packed(page.data(), layout, packed);
      backend->export_packed(page.data(), layout, back);
      EXPECT_EQ(back, packed) << "packed, d = " << d << " group = " << group;
    }
  }
}

}  // namespace
}  // namespace kv2
