// SPDX-License-Identifier: Apache-2.0
#include "quant/page_codec.h"

#include <memory>

#include "base/check.h"

namespace kv2 {
namespace codecs {
#define KV2_CODEC(Id, name) std::unique_ptr<PageCodec> make_##name();
#include "quant/codecs.def"
#undef KV2_CODEC
}  // namespace codecs

const PageCodec& page_codec(CodecId id) {
  switch (id) {
#define KV2_CODEC(Id, name)                                                \
  case CodecId::Id: {                                                      \
    static const std::unique_ptr<PageCodec> codec = codecs::make_##name(); \
    return *codec;                                                         \
  }
#include "quant/codecs.def"
#undef KV2_CODEC
    default:
      break;
  }
  KV2_CHECK(false, "codec {}", static_cast<int>(id));
  __builtin_unreachable();
}

namespace {

const char* name_of(CodecId id) {
  switch (id) {
#define KV2_CODEC(Id, name) \
  case CodecId::Id:         \
    return #name;
#include "quant/codecs.def"
#undef KV2_CODEC
    default:
      break;
  }
  return "none";
}

}  // namespace

std::string describe(const SideFormat& format) {
  if (format.codec == CodecId::None || format.codec == CodecId::Bf16) return name_of(format.codec);
  std::string out = fmt::format("{} {} bit{}, groups of {}", name_of(format.codec), format.bits,
                                format.bits == 1 ? "" : "s", format.group);
  if (format.offset != OffsetKind::Stored) out += ", no offset";
  if (format.norm == TokenNorm::AllHeads) out += ", token norms";
  if (format.kept > 0) out += fmt::format(", {} tokens of a page in bf16", format.kept);
  if (format.wide > 0) out += fmt::format(", {} of 64 channels in 4 bits", format.wide);
  return out;
}

}  // namespace kv2
