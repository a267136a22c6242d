// SPDX-License-Identifier: Apache-2.0
// CacheSpec and the methods table: text round trips, refusals that name what is allowed, groups, stable
// hashes.
#include <gtest/gtest.h>

#include <random>
#include <set>
#include <string>

#include "kv2/cache.h"
#include "kv2/error.h"
#include "quant/page_layout.h"

namespace kv2 {
namespace {

/// The message of the Error{BadArgument} that `body` throws.
template <class Body>
std::string refusal(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::BadArgument) << error.what();
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << "one line";
    return error.what();
  }
  ADD_FAILURE() << "nothing was refused";
  return {};
}
std::string parse_refusal(const std::string& text) {
  return refusal([&] { CacheSpec::parse(text); });
}
void expect_has(const std::string& message, std::initializer_list<const char*> parts) {
  for (const char* part : parts)
    EXPECT_NE(message.find(part), std::string::npos) << part << " in: " << message;
}

TEST(Methods, RowsAreWhatTheirNamesSay) {
  const Method bf16 = CacheSpec::parse("bf16").method;
  EXPECT_FALSE(bf16.quantized());
  EXPECT_FALSE(bf16.needs_calibration());
  const Method naive = CacheSpec::parse("naive2").method;
  EXPECT_EQ(naive.k, (SideFormat{.codec = CodecId::Affine, .bits = 2}));
  EXPECT_EQ(naive.v, naive.k);
  EXPECT_EQ(naive.transform, TransformKind::Identity);
  EXPECT_EQ(naive.clip_k, 1.0f);
  EXPECT_FALSE(naive.needs_calibration());
  const Method quarot = CacheSpec::parse("quarot2").method;
  EXPECT_EQ(quarot.transform, TransformKind::Hadamard);
  EXPECT_EQ(quarot.clip_v, 1.0f);
  EXPECT_FALSE(quarot.needs_calibration());
  const Method oscar = CacheSpec::parse("oscar2").method;
  EXPECT_EQ(oscar.transform, TransformKind::Calibrated);
  EXPECT_EQ(oscar.recipe, RotationRecipe::UHP);
  EXPECT_EQ(oscar.sharing, RotationSharing::Head);
  EXPECT_EQ(oscar.value_target, ValueTarget::AttentionOutput);
  EXPECT_FALSE(oscar.clip_k || oscar.clip_v);
  EXPECT_TRUE(oscar.needs_calibration());
  EXPECT_EQ(CacheSpec::parse("oscar2").sink_tokens, 64);
  EXPECT_EQ(CacheSpec::parse("oscar2").recent_tokens, 256);
  const Method kv2 = CacheSpec::parse("kv2").method;
  EXPECT_EQ(kv2.k, naive.k);
  EXPECT_EQ(kv2.transform, TransformKind::Calibrated);
  EXPECT_EQ(kv2.coder_k(), CoderKind::Feedback);
  EXPECT_EQ(kv2.coder_v(), CoderKind::Feedback);
  EXPECT_TRUE(kv2.needs_calibration());
  EXPECT_EQ(oscar.coder_k(), CoderKind::Round);
  ASSERT_GE(methods().size(), 15u);
  EXPECT_EQ(methods()[0].name, "bf16");
  EXPECT_EQ(methods()[3].name, "oscar2");
  EXPECT_EQ(methods()[4].name, "kv2");
}

TEST(Methods, ParametersReachTheMethod) {
  const Method m =
      CacheSpec::parse("oscar2:clip-k=0.96,clip-v=search,group=32,rotation=u,share=layer,target-v=energy")
          .method;
  EXPECT_EQ(m.clip_k, 0.96f);
  EXPECT_EQ(m.clip_v, std::nullopt);
  EXPECT_EQ(m.k.group, 32);
  EXPECT_EQ(m.v.group, 32);
  EXPECT_EQ(m.recipe, RotationRecipe::U);
  EXPECT_EQ(m.sharing, RotationSharing::Layer);
  EXPECT_EQ(m.value_target, ValueTarget::EnergyWeighted);
  const Method q = CacheSpec::parse("quarot2:clip=0.88").method;
  EXPECT_EQ(q.clip_k, 0.88f);
  EXPECT_EQ(q.clip_v, 0.88f);
  EXPECT_FALSE(q.needs_calibration());
  EXPECT_TRUE(CacheSpec::parse("quarot2:clip-v=search").method.needs_calibration());
  const Method k =
      CacheSpec::parse("kv2:damp=0.1,steps=0.9/1.2,refit=2,feedback=k,clip-v=0.88,group=32").method;
  EXPECT_EQ(k.damp, 0.1f);
  EXPECT_EQ(k.steps, (std::vector<float>{0.9f, 1.2f}));
  EXPECT_EQ(k.refits, 2);
  EXPECT_EQ(k.coder_k(), CoderKind::Feedback);
  EXPECT_EQ(k.coder_v(), CoderKind::Round);
  EXPECT_EQ(k.clip_v, 0.88f);
  EXPECT_EQ(CacheSpec::parse("kv2:feedback=v").method.coder_k(), CoderKind::Round);
  const Method w = CacheSpec::parse("kv2:centre=k,whiten=0.5,whiten-v=0.25").method;
  EXPECT_EQ(w.centring, Centring::Keys);
  EXPECT_EQ(w.whiten_k, 0.5f);
  EXPECT_EQ(w.whiten_v, 0.25f);
  // A later parameter wins over the shorthand before it.
  EXPECT_EQ(CacheSpec::parse("oscar2:clip=off,clip-v=0.9").method_text(), "oscar2:clip-k=off,clip-v=0.9");
}

TEST(Methods, CanonicalTextNamesOnlyWhatDiffers) {
  EXPECT_EQ(CacheSpec::parse("oscar2").method_text(), "oscar2");
  EXPECT_EQ(CacheSpec::parse("oscar2:rotation=uhp,share=head,clip=search").method_text(), "oscar2");
  EXPECT_EQ(CacheSpec::parse("naive2:clip=1").method_text(), "naive2");
  EXPECT_EQ(CacheSpec::parse("naive2:group=32,clip-v=0.5,clip-k=0.25").method_text(),
            "naive2:clip-k=0.25,clip-v=0.5,group=32");
  EXPECT_EQ(CacheSpec::parse("kv2").method_text(), "kv2");
  EXPECT_EQ(CacheSpec::parse("kv2:feedback=both,clip=search,refit=1,steps=auto").method_text(), "kv2");
  EXPECT_EQ(CacheSpec::parse("kv2:steps=1,refit=0,share=layer,feedback=v,damp=0.5").method_text(),
            "kv2:share=layer,feedback=v,damp=0.5,steps=1,refit=0");
}

/// Bits, groups, offsets and overrides that the method takes.
void change_formats(Method& m, std::mt19937& rng) {
  const auto pick = [&](int n) { return static_cast<int>(rng() % n); };
  const int bits[] = {1, 2, 3, 4, 8};
  for (SideFormat* side : {&m.k, &m.v}) {
    side->group = pick(2) ? 0 : 4 * (1 + pick(128));
    const bool feedback = (side == &m.k ? m.coder_k() : m.coder_v()) == CoderKind::Feedback;
    if (pick(2)) side->bits = bits[pick(feedback ? 4 : 5)];
    if (side->codec == CodecId::Channel) {
      side->norm = static_cast<TokenNorm>(pick(2));
      side->kept = pick(9);
      side->wide = pick(65);
    }
  }
  const bool affine = m.k.codec == CodecId::Affine && m.v.codec == CodecId::Affine;
  if (affine && pick(3) == 0)
    m.k.offset = m.v.offset =
        m.coder == CoderKind::Feedback || pick(2) ? OffsetKind::Centred : OffsetKind::Symmetric;
  const bool two_bits = m.k.bits == 2 && m.v.bits == 2 && m.k.offset == OffsetKind::Stored;
  if (m.range == RangeRule::LloydMax && !two_bits) m.range = RangeRule::MinMax;
  if (m.coder_k() == CoderKind::Round && m.k.bits != 2 && !m.clip_k) m.clip_k = 1.0f;
  if (m.coder_v() == CoderKind::Round && m.v.bits != 2 && !m.clip_v) m.clip_v = 1.0f;
  if (m.k.codec != CodecId::Affine) m.clip_k = 1.0f;
  if (m.v.codec != CodecId::Affine) m.clip_v = 1.0f;
  for (int n = pick(3); n > 0; n--) {
    LayerOverride o{.layers = {pick(30)}, .form = static_cast<LayerOverride::Form>(pick(3))};
    if (pick(2)) o.layers.push_back(-1 - pick(30));
    if (o.form != LayerOverride::Form::Bf16) o.bits_k = o.bits_v = bits[pick(4)];
    if (o.form == LayerOverride::Form::Bits) o.bits_v = bits[pick(4)];
    m.overrides.push_back(o);
  }
}

TEST(Methods, TextReadsBackToTheSameSpec) {
  std::mt19937 rng(17);
  const auto pick = [&](int n) { return static_cast<int>(rng() % n); };
  const auto clip = [&]() -> std::optional<float> {
    if (pick(4) == 0) return std::nullopt;
    if (pick(4) == 0) return 1.0f;
    return std::ldexp(static_cast<float>(rng() % 0xffffff + 1), -24 - pick(3) * 10);
  };
  std::set<std::string> texts;
  for (int i = 0; i < 20000; ++i) {
    CacheSpec spec = CacheSpec::parse(methods()[pick(static_cast<int>(methods().size()))].name);
    Method& m = spec.method;
    if (m.quantized()) {
      if (m.coder == CoderKind::Feedback) {
        m.sides = static_cast<FeedbackSides>(pick(3));
        m.damp = std::ldexp(static_cast<float>(rng() % 0xffff + 1), -18);
        m.steps.assign(pick(9), 1.0f);
        for (float& step : m.steps) step = 0.01f + static_cast<float>(rng() % 0xffff) * 1e-3f;
        m.refits = pick(9);
      }
      if (m.coder_k() == CoderKind::Round) m.clip_k = clip();
      if (m.coder_v() == CoderKind::Round) m.clip_v = clip();
      change_formats(m, rng);
    }
    if (m.transform == TransformKind::Calibrated) {
      m.recipe = static_cast<RotationRecipe>(pick(3));
      m.sharing = static_cast<RotationSharing>(pick(2));
      m.value_target = static_cast<ValueTarget>(pick(3));
      m.centring = static_cast<Centring>(pick(2));
      for (float* whiten : {&m.whiten_k, &m.whiten_v})
        *whiten = pick(2) ? 0.0f : std::ldexp(static_cast<float>(rng() % 0x10000 + 1), -16);
    }
    const std::string text = spec.method_text();
    ASSERT_EQ(CacheSpec::parse(text), spec) << text;
    ASSERT_EQ(CacheSpec::parse(text).method_text(), text);
    texts.insert(text);
  }
  EXPECT_GT(texts.size(), 10000u);
}

TEST(Methods, RefusalsNameWhatIsAllowed) {
  expect_has(parse_refusal("kivi"), {"unknown method 'kivi'", "bf16 (", "naive2 (", "quarot2 (", "oscar2 (",
                                     "kv2 (", "kivi2 (", "tq3 ("});
  expect_has(parse_refusal(""), {"unknown method ''", "oscar2"});
  expect_has(parse_refusal("Oscar2"), {"unknown method 'Oscar2'"});
  expect_has(parse_refusal("oscar2:levels=3"), {"unknown parameter 'levels'", "clip-k", "group", "target-v"});
  expect_has(parse_refusal("oscar2:bits=3"), {"clips are searched for 2 bits", "clip-k=off"});
  for (const char* value : {"0", "5", "-1", "16", "x", ""}) {
    expect_has(parse_refusal(std::string("naive2:bits-k=") + value), {"bits-k", "1, 2, 3, 4 or 8"});
  }
  for (const char* value :
       {"", "0", "=int8", "0=int5", "0=", "0/=int8", "x=int8", "0=int8+", "0=k2", "0=k2v9", "+"}) {
    expect_has(parse_refusal(std::string("naive2:layers=") + value), {"layers", "0/1/-1=int8"});
  }
  expect_has(parse_refusal("kv2:bits-k=8"), {"1 to 4 bits", "feedback=v,clip-k=off"});
  CacheSpec::parse("kv2:bits-k=8,feedback=v,clip-k=off");
  CacheSpec::parse("kv2:bits-v=8,feedback=k,clip-v=off");
  expect_has(parse_refusal("kv2:bits=8"), {"1 to 4 bits", "int8 instead"});
  expect_has(parse_refusal("kv2:layers=0=k2v8"), {"1 to 4 bits", "int8 there"});
  expect_has(parse_refusal("kivi2:clip-k=0.9"), {"unknown parameter 'clip-k'", "clip-v"});
  expect_has(parse_refusal("naive2:range=lloyd,bits-k=3"), {"range=lloyd is for 2 bits"});
  expect_has(parse_refusal("naive2:range=integer,offset=off"), {"without an offset"});
  expect_has(parse_refusal("kv2:offset=symmetric"), {"on or off, not symmetric"});
  expect_has(parse_refusal("int4:hadamard=off"), {"hadamard-of=k or v has no effect"});
  expect_has(parse_refusal("tq2:hadamard=16"), {"'16' is no value of hadamard"});
  expect_has(parse_refusal("bf16:group=32"), {"unknown parameter 'group'", "bf16 takes none"});
  const std::string no_rotation = parse_refusal("quarot2:rotation=u");
  expect_has(no_rotation, {"unknown parameter 'rotation'", "parameters of quarot2: clip ("});
  EXPECT_EQ(no_rotation.find("target-v"), std::string::npos);
  expect_has(parse_refusal("oscar2:rotation=h"), {"'h' is no value of rotation", "u, uh or uhp"});
  expect_has(parse_refusal("oscar2:clip-k=0.9,clip-k=0.8"), {"clip-k is given twice"});
  for (const char* value : {"0", "-0.5", "1.01", "nan", "inf", "0.9x", "", " 0.9", "1e-60", "0,9"}) {
    expect_has(parse_refusal(std::string("oscar2:clip-k=") + value), {"clip-k"});
  }
  for (const char* value : {"0", "3", "30", "-4", "516", "99999999999", "32.", "x", ""}) {
    expect_has(parse_refusal(std::string("naive2:group=") + value), {"group", "multiple of 4"});
  }
  for (const char* value : {"0", "-1", "1e9", "nan", "x", ""}) {
    expect_has(parse_refusal(std::string("kv2:damp=") + value), {"damp", "1e-6"});
  }
  for (const char* value : {"", "/", "1/", "/1", "0", "1/-1", "1/nan", "1/1/1/1/1/1/1/1/1", "1;2"}) {
    expect_has(parse_refusal(std::string("kv2:steps=") + value), {"steps", "1 to 8"});
  }
  for (const char* value : {"-1", "9", "1.5", ""}) {
    expect_has(parse_refusal(std::string("kv2:refit=") + value), {"refit", "0 to 8"});
  }
  for (const char* value : {"-0.1", "1.01", "nan", ""}) {
    expect_has(parse_refusal(std::string("kv2:whiten=") + value), {"whiten", "0 (a rotation) to 1"});
  }
  expect_has(parse_refusal("kv2:centre=v"), {"'v' is no value of centre", "k or off"});
  expect_has(parse_refusal("quarot2:centre=k"), {"unknown parameter 'centre'"});
  expect_has(parse_refusal("kv2:feedback=q"), {"'q' is no value of feedback", "k, v or both"});
  expect_has(parse_refusal("oscar2:damp=1"), {"unknown parameter 'damp'"});
  // What would have no effect is refused.
  expect_has(parse_refusal("kv2:clip-k=0.9"), {"clip-k has no effect", "feedback=v"});
  expect_has(parse_refusal("kv2:clip=0.9"), {"clip-k has no effect"});
  expect_has(parse_refusal("kv2:feedback=k,clip-k=off,clip-v=0.9"), {"clip-k has no effect"});
  expect_has(parse_refusal("kv2:clip-v=0.9,feedback=v"), {"clip-v has no effect", "feedback=k"});
  for (const char* text :
       {"oscar2:", "oscar2:,", "oscar2:group=32,", "oscar2:clip-k", "oscar2:=1", "oscar2 "}) {
    EXPECT_FALSE(parse_refusal(text).empty()) << text;
  }
}

TEST(Methods, DefaultGroups) {
  const CacheSpec spec = CacheSpec::parse("oscar2");
  const int expected[][2] = {{64, 64},   {80, 80},  {96, 96},   {112, 112},
                             {128, 128}, {192, 96}, {256, 128}, {512, 128}};
  for (const auto& [head_dim, group] : expected) {
    EXPECT_NO_THROW(spec.validate(head_dim)) << head_dim;
    EXPECT_EQ(PageLayout::of(spec, {.n_layers = 2, .n_heads = 4, .n_kv_heads = 2, .head_dim = head_dim})
                  .layer(1)
                  .v.group,
              group);
  }
}

TEST(Methods, FormatsReachTheirLayers) {
  const KvShape shape{.n_layers = 5, .n_heads = 4, .n_kv_heads = 2, .head_dim = 64};
  const auto layout = [&](const char* text) { return PageLayout::of(CacheSpec::parse(text), shape); };
  EXPECT_EQ(layout("kv2:bits-k=3").history_bits(), 3.0);
  EXPECT_EQ(layout("kv2:bits-k=2,bits-v=1").history_bits(), 2.0);
  EXPECT_EQ(layout("kv2:offset=off").history_bits(), 2.25);
  EXPECT_EQ(layout("naive2:group-k=32,group-v=16").history_bits(), 3.5);
  EXPECT_EQ(layout("kivi2").history_bits(), 3.0);
  EXPECT_NEAR(layout("omni2").history_bits(), 3 + 32.0 / 128 / 2, 1e-12);
  EXPECT_EQ(layout("tq3").history_bits(), 3.25);
  EXPECT_EQ(layout("tq3:qjl=k").history_bits(), 3.375);
  EXPECT_EQ(layout("int8").history_bits(), 8.5);
  const PageLayout l = layout("kv2:layers=0/-1=int8+1=bf16+1/2=k3v2+4=bf16");
  EXPECT_EQ(l.layer(0).k.bits, 8);
  EXPECT_TRUE(l.layer(0).rounded);
  EXPECT_EQ(l.layer(1).k.bits, 3) << "the later one wins";
  EXPECT_EQ(l.layer(1).v.bits, 2);
  EXPECT_FALSE(l.layer(2).rounded);
  EXPECT_TRUE(l.layer(3).int2_heads());
  EXPECT_EQ(l.layer(4).k.codec, CodecId::Bf16);
  size_t end = 0;
  for (int i = 0; i < 5; i++) {
    EXPECT_GE(l.layer(i).offset, end);
    EXPECT_EQ(l.layer(i).offset % 64, 0u);
    end = l.layer(i).offset + l.layer(i).bytes();
  }
  EXPECT_EQ(l.packed_page_bytes(), (end + 63) / 64 * 64);
  expect_has(refusal([&] { layout("naive2:layers=5=int8"); }), {"layers=5", "0 to 4"});
  expect_has(refusal([&] { layout("naive2:layers=-6=int8"); }), {"layers=-6", "-1 to -5"});
  for (const MethodInfo& m : methods()) EXPECT_NO_THROW(layout(m.name.c_str())) << m.name;
}

TEST(Methods, ValidateNamesWhatDoesNotFit) {
  const auto why = [](const CacheSpec& spec, int head_dim) {
    return refusal([&] { spec.validate(head_dim); });
  };
  expect_has(why(CacheSpec::parse("naive2:group=48"), 64), {"group 48", "head_dim 64", "4, 8, 16, 32, 64"});
  expect_has(why(CacheSpec::parse("naive2"), 66), {"head_dim 66", "bf16"});
  expect_has(why(CacheSpec::parse("naive2"), 1024), {"head_dim 1024", "512"});
  expect_has(why(CacheSpec::parse("quarot2"), 72), {"order 72", "12·2^k"});
  expect_has(why(CacheSpec::parse("oscar2"), 72), {"order 72", "rotation=u"});
  EXPECT_NO_THROW(CacheSpec::parse("oscar2:rotation=u").validate(72));
  EXPECT_NO_THROW(CacheSpec::parse("naive2").validate(72));
  EXPECT_NO_THROW(CacheSpec::parse("bf16").validate(66));
  expect_has(why(CacheSpec::parse("bf16"), 0), {"head_dim"});
  for (int tokens : {-64, 1, 63, 65, 1 << 30}) {
    CacheSpec spec = CacheSpec::parse("oscar2");
    spec.sink_tokens = tokens;
    expect_has(why(spec, 128), {"sink", "multiple of 64"});
    spec.sink_tokens = 0;
    spec.recent_tokens = tokens;
    expect_has(why(spec, 128), {"recent", "multiple of 64"});
    spec.recent_tokens = 0;
    EXPECT_NO_THROW(spec.validate(128));
  }
  CacheSpec spec = CacheSpec::parse("naive2");
  spec.method.clip_k = 1.5f;
  expect_has(why(spec, 128), {"clip-k", "(0, 1]"});
  spec = CacheSpec::parse("kv2");
  expect_has(why(spec, 72), {"order 72", "kv2:rotation=u"});
  spec.method.steps = std::vector<float>(9, 1.0f);
  expect_has(why(spec, 128), {"steps are [1", "up to 8"});
  spec.method.steps = {1, -1};
  expect_has(why(spec, 128), {"steps are [1, -1]"});
  spec.method.steps = {1};
  for (float* whiten : {&spec.method.whiten_k, &spec.method.whiten_v}) {
    *whiten = 1.5f;
    expect_has(why(spec, 128), {"whiten is 1.5"});
    *whiten = 0;
  }
  spec.method.damp = 0;
  expect_has(why(spec, 128), {"damp is 0"});
  spec.method = {.name = "own"};
  expect_has(why(spec, 128), {"unknown method 'own'"});
}

TEST(Methods, HashIsStableAndTellsSpecsApart) {
  // Goldens: a change here means that no file or cache key of an earlier version is recognised any more.
  EXPECT_EQ(CacheSpec::parse("bf16").hash(), 0x84de8e7345570299u);
  EXPECT_EQ(CacheSpec::parse("oscar2").hash(), 0x569de320fa80afb6u);
  EXPECT_EQ(CacheSpec::parse("kv2").hash(), 0x27dca64346bdc4e9u);
  EXPECT_EQ(CacheSpec::parse("oscar2:clip=search").hash(), CacheSpec::parse("oscar2").hash());
  std::set<uint64_t> seen;
  for (const char* text : {"bf16",
                           "naive2",
                           "quarot2",
                           "oscar2",
                           "oscar2:group=32",
                           "oscar2:clip-k=0.9",
                           "oscar2:clip-v=0.9",
                           "oscar2:share=layer",
                           "oscar2:rotation=uh",
                           "oscar2:target-v=cov",
                           "kv2",
                           "kv2:feedback=k",
                           "kv2:feedback=v",
                           "kv2:damp=0.03",
                           "kv2:steps=1",
                           "kv2:refit=2",
                           "kv2:group=32",
                           "kv2:rotation=uh",
                           "kv2:bits-k=3",
                           "kv2:offset=off",
                           "kv2:layers=0=int8",
                           "kv2:layers=0=bf16",
                           "naive2:offset=symmetric",
                           "naive2:group-v=32",
                           "quarot2:range=integer",
                           "quarot2:hadamard=16",
                           "kivi2",
                           "kivi2:group-k=64",
                           "omni2",
                           "omni2:norm=off",
                           "omni2:range=integer",
                           "tq2",
                           "tq2:norm-rule=plain",
                           "tq2:qjl=both",
                           "kv2:centre=off",
                           "kv2:whiten-k=0.5",
                           "kv2:whiten-v=0.5"}) {
    CacheSpec spec = CacheSpec::parse(text);
    EXPECT_TRUE(seen.insert(spec.hash()).second) << text;
    spec.sink_tokens = 0;
    EXPECT_TRUE(seen.insert(spec.hash()).second) << text;
    spec.recent_tokens = 0;
    EXPECT_TRUE(seen.insert(spec.hash()).second) << text;
    spec.prefill = PrefillPolicy::Exact;
    EXPECT_TRUE(seen.insert(spec.hash()).second) << text;
  }
}

TEST(Methods, DescribeIsOneLine) {
  CacheSpec spec = CacheSpec::parse("oscar2:clip=0.9");
  spec.prefill = PrefillPolicy::Exact;
  EXPECT_EQ(spec.describe(),
            "oscar2:clip-k=0.9,clip-v=0.9: first 64 and last 256 tokens in bf16, 2-bit history between, "
            "exact prefill");
  EXPECT_EQ(CacheSpec::parse("bf16").describe(), "bf16: every token in bf16");
}

}  // namespace
}  // namespace kv2
