// SPDX-License-Identifier: Apache-2.0
// bf16: the rows as a full page has them, [n_kv_heads][64][head_dim], for layers that a method leaves alone.
#include <cstring>
#include <memory>

#include "base/check.h"
#include "quant/page_codec.h"

namespace kv2::codecs {
namespace {

class Bf16Codec final : public PageCodec {
  static size_t head_values(const KvShape& shape) {
    return static_cast<size_t>(kPageTokens) * shape.head_dim;
  }

 public:
  SideFormat resolve(const SideFormat&, int) const override { return {.codec = CodecId::Bf16, .bits = 16}; }
  size_t bytes(const SideFormat&, const KvShape& shape) const override {
    return shape.n_kv_heads * head_values(shape) * sizeof(bf16);
  }
  void encode(const Side& side, const PageRows& rows, const Coder&, std::byte* page) const override {
    const size_t n = head_values(side.shape) * sizeof(bf16);
    for (int h = 0; h < side.shape.n_kv_heads; h++) std::memcpy(page + h * n, rows.head(h), n);
  }
  void decode(const Side& side, const std::byte* page, int kv_head, float* rows) const override {
    const size_t n = head_values(side.shape);
    const auto* from = reinterpret_cast<const bf16*>(page) + kv_head * n;
    for (size_t i = 0; i < n; i++) rows[i] = to_float(from[i]);
  }
};

}  // namespace

std::unique_ptr<PageCodec> make_bf16() {
  return std::make_unique<Bf16Codec>();
}

}  // namespace kv2::codecs
