// SPDX-License-Identifier: Apache-2.0
// The cases can fail: a reference backend with one small fault at a time must be caught by at least one case
// of that op.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "kv2/error.h"
#include "ops/op_case.h"
#include "ops/reference/reference.h"

namespace kv2 {
namespace {

/// What a fault may change before the reference sees it. Empty functions change nothing.
struct Fault {
  std::string op, name;
  std::function<void(EmbedParams&, std::vector<int32_t>&)> embed;
  std::function<void(RmsNormParams&)> rms_norm;
  std::function<void(LinearParams&)> linear;
  std::function<void(RopeParams&, std::vector<int64_t>&, std::vector<float>&)> rope;
  std::function<void(TransformParams&)> transform;
  std::function<void(AppendParams&, std::vector<float>&)> append;
  std::function<void(DemoteParams&)> demote;
  std::function<void(AttendParams&)> attend;
  std::function<void(SwigluParams&)> swiglu;
};

class WrongBackend final : public Backend {
 public:
  explicit WrongBackend(const Fault& fault)
      : fault_(fault), right_(make_reference_backend(LinearPrecision::F32)) {}

  std::string describe() const override { return "wrong: " + fault_.name; }
  std::string linear_precision() const override { return "f32"; }
  void* allocate(size_t bytes) override { return right_->allocate(bytes); }
  void release(void* memory) noexcept override { right_->release(memory); }
  void upload(void* device, const void* host, size_t n) override { right_->upload(device, host, n); }
  void download(void* host, const void* device, size_t n) override { right_->download(host, device, n); }
  void copy(void* to, const void* from, size_t n) override { right_->copy(to, from, n); }
  void sync() override {}
  std::unique_ptr<Linear> make_linear(const LinearSource& s) override { return right_->make_linear(s); }
  std::unique_ptr<Linear> make_embedding(const LinearSource& s) override { return right_->make_embedding(s); }
  size_t scratch_bytes(int, int, const KvShape&) const override { return 0; }

  void embed(const Linear& table, const EmbedParams& given) override {
    EmbedParams p = given;
    std::vector<int32_t> tokens(p.tokens, p.tokens + p.n_rows);
    p.tokens = tokens.data();
    if (fault_.embed) fault_.embed(p, tokens);
    right_->embed(table, p);
  }
  void rms_norm(const RmsNormParams& given) override {
    RmsNormParams p = given;
    if (fault_.rms_norm) fault_.rms_norm(p);
    right_->rms_norm(p);
  }
  void linear(const Linear& weights, const LinearParams& given) override {
    LinearParams p = given;
    if (fault_.linear) fault_.linear(p);
    right_->linear(weights, p);
  }
  void rope(const RopeParams& given) override {
    RopeParams p = given;
    std::vector<int64_t> positions(p.positions, p.positions + p.n_rows);
    std::vector<float> inv_frequency(p.inv_frequency, p.inv_frequency + p.head_dim / 2);
    p.positions = positions.data();
    p.inv_frequency = inv_frequency.data();
    if (fault_.rope) fault_.rope(p, positions, inv_frequency);
    right_->rope(p);
  }
  void transform(const TransformParams& given) override {
    TransformParams p = given;
    if (fault_.transform) fault_.transform(p);
    right_->transform(p);
  }
  void append(const AppendParams& given) override {
    AppendParams p = given;
    size_t rows = 0;
    for (const SequenceView& s : p.sequences) rows += s.n_rows;
    const KvShape& shape = p.kv.layout.shape;
    std::vector<float> k(p.k, p.k + rows * shape.n_kv_heads * shape.head_dim);
    p.k = k.data();
    if (fault_.append) fault_.append(p, k);
    right_->append(p);
  }
  void demote(const DemoteParams& given) override {
    DemoteParams p = given;
    if (fault_.demote) fault_.demote(p);
    right_->demote(p);
  }
  void attend(const AttendParams& given) override {
    AttendParams p = given;
    if (fault_.attend) fault_.attend(p);
    right_->attend(p);
  }
  void swiglu(const SwigluParams& given) override {
    SwigluParams p = given;
    if (fault_.swiglu) fault_.swiglu(p);
    right_->swiglu(p);
  }
  void export_full(const void* page, int d, std::span<std::byte> out) override {
    right_->export_full(page, d, out);
  }
  void import_full(void* page, int d, std::span<const std::byte> in) override {
    right_->import_full(page, d, in);
  }
  void export_packed(const void* page, const Int2Layout& layout, std::span<std::byte> out) override {
    right_->export_packed(page, layout, out);
  }
  void import_packed(void* page, const Int2Layout& layout, std::span<const std::byte> in) override {
    right_->import_packed(page, layout, in);
  }

 private:
  const Fault& fault_;
  std::unique_ptr<Backend> right_;
};

float truncated_to_bf16(float x) {
  return std::bit_cast<float>(std::bit_cast<uint32_t>(x) & 0xffff0000u);
}

std::vector<Fault> faults() {
  return {
      {.op = "embed",
       .name = "last token",
       .embed = [](auto& p, auto& tokens) { tokens[p.n_rows - 1] ^= 1; }},
      {.op = "rms_norm", .name = "no epsilon", .rms_norm = [](auto& p) { p.epsilon = 0; }},
      {.op = "rms_norm", .name = "last row missing", .rms_norm = [](auto& p) { p.n_rows -= p.n_rows > 1; }},
      {.op = "linear", .name = "never accumulates", .linear = [](auto& p) { p.accumulate = Accumulate::No; }},
      {.op = "linear",
       .name = "always accumulates",
       .linear = [](auto& p) { p.accumulate = Accumulate::Yes; }},
      {.op = "rope", .name = "position + 1", .rope = [](auto&, auto& pos, auto&) { pos.back()++; }},
      {.op = "rope",
       .name = "one ulp of angle",
       .rope = [](auto&, auto&, auto& f) { f[0] = std::nextafter(f[0], 2.f); }},
      {.op = "rope",
       .name = "pairing",
       .rope = [](auto& p, auto&, auto&) { p.pairing = RopePairing::Halves; }},
      {.op = "transform", .name = "never transposed", .transform = [](auto& p) { p.transpose = false; }},
      {.op = "transform", .name = "no mean", .transform = [](auto& p) { p.mean = nullptr; }},
      {.op = "transform", .name = "no add", .transform = [](auto& p) { p.add = nullptr; }},
      {.op = "append",
       .name = "truncates",
       .append =
           [](auto&, auto& k) {
             for (float& x : k) x = truncated_to_bf16(x);
           }},
      {.op = "append",
       .name = "flushes subnormals",
       .append =
           [](auto&, auto& k) {
             for (float& x : k) x = std::fabs(x) < 0x1p-126f ? std::copysign(0.f, x) : x;
           }},
      {.op = "append", .name = "other layer", .append = [](auto& p, auto&) { p.layer = 0; }},
      {.op = "demote", .name = "clip of K", .demote = [](auto& p) { p.k.clip_index = -1; }},
      {.op = "demote", .name = "coders swapped", .demote = [](auto& p) { std::swap(p.k, p.v); }},
      {.op = "demote",
       .name = "last page missing",
       .demote = [](auto& p) { p.pages = p.pages.first(p.pages.size() - 1); }},
      {.op = "attend", .name = "recent + 1", .attend = [](auto& p) { p.kv.rule.recent_pages++; }},
      {.op = "attend", .name = "sink - 1", .attend = [](auto& p) { p.kv.rule.sink_pages--; }},
      {.op = "attend", .name = "scale off by 1e-4", .attend = [](auto& p) { p.softmax_scale *= 1.0001f; }},
      {.op = "attend", .name = "no soft cap", .attend = [](auto& p) { p.soft_cap = 0; }},
      {.op = "attend",
       .name = "last sequence missing",
       .attend = [](auto& p) { p.sequences = p.sequences.first(p.sequences.size() - 1); }},
      {.op = "swiglu", .name = "gate and up swapped", .swiglu = [](auto& p) { std::swap(p.gate, p.up); }},
  };
}

TEST(OpCases, CatchEveryFaultOfAWrongBackend) {
  Oracle oracle;
  for (const Fault& fault : faults()) {
    WrongBackend wrong(fault);
    int n_caught = 0;
    for (const OpCase& c : op_cases(fault.op)) {
      if (c.flops > 2e7) continue;  // small cases suffice to show it
      try {
        n_caught += !check_case(c, wrong, oracle, nullptr).empty();
      } catch (const Error&) {
        n_caught++;  // the fault asked for a page that is not held
      }
      if (n_caught > 0) break;
    }
    EXPECT_GT(n_caught, 0) << fault.op << ": " << fault.name;
  }
}

TEST(OpCases, ARightBackendIsNotAccused) {
  Oracle oracle;
  const Fault none{.op = "", .name = "none"};
  WrongBackend right(none);
  for (const std::string& op : op_names()) {
    for (const OpCase& c : op_cases(op)) {
      if (c.flops > 2e6) continue;
      EXPECT_EQ(check_case(c, right, oracle, nullptr), "");
    }
  }
}

// A linear whose tile width shows in the sum: rows of a batch of four or more get one ulp.
TEST(InvarianceCases, CatchALinearThatDependsOnItsBatch) {
  const Fault fault{.op = "linear", .name = "batch", .linear = [](LinearParams& p) {
                      if (p.n_rows >= 4) const_cast<float*>(p.in)[0] = std::nextafter(p.in[0], 100.0f);
                    }};
  WrongBackend wrong(fault);
  const std::vector<InvarianceCase> all = invariance_cases("linear", 9);
  EXPECT_NE(check_invariance(all.front(), {&wrong}), "");
  const auto right = make_reference_backend(LinearPrecision::F32),
             bf16 = make_reference_backend(LinearPrecision::Bf16);
  EXPECT_EQ(check_invariance(all.front(), {right.get(), right.get()}), "");
  EXPECT_NE(check_invariance(all.front(), {right.get(), bf16.get()}), "");  // backends are compared, too
}

}  // namespace
}  // namespace kv2
