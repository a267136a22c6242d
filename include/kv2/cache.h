// SPDX-License-Identifier: Apache-2.0
// CacheSpec: the whole shape of a KV cache. Immutable once a cache is made from it, printable, hashed into
// files.
//
// The rule of visibility (docs/page-format.md): positions are grouped in pages of 64; a query in page P reads
// page j packed (2-bit codes) iff sink_pages <= j < P - recent_pages, and in full (bf16) otherwise. Precision
// is a function of positions only, so one long prefill, any chunking of it, token-by-token decode, any batch
// and a prefix hit agree.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kv2 {

inline constexpr int kPageTokens = 64;

/// What a basis change in front of the codes is fitted from.
enum class TransformKind : uint8_t {
  Identity,
  Hadamard,        // H, data-free (QuaRot)
  SignedHadamard,  // a fixed random sign per channel, then H (TurboQuant)
  Calibrated,      // R = U·H·P from a calibration file (OSCAR, arXiv 2605.17757)
};

/// How a calibrated rotation is composed; the paper's is UHP. The others are for ablations.
enum class RotationRecipe : uint8_t { U, UH, UHP };
/// One rotation per KV head (default) or one per layer (the mean of its heads' covariances).
enum class RotationSharing : uint8_t { Head, Layer };
/// Which statistic the value rotation is fitted from: the paper's C_S = V'S'SV/N (the covariance of attention
/// outputs), the reference code's V' diag(w) V, or the plain self-covariance V'V.
enum class ValueTarget : uint8_t { AttentionOutput, EnergyWeighted, SelfCovariance };

/// What a Hadamard transform rotates.
enum class TransformSides : uint8_t { Both, Keys, Values };

/// Whether the calibrated mean is taken off every key. It adds the same to all logits of a query, which
/// softmax does not see, so nothing puts it back.
enum class Centring : uint8_t { Off, Keys };

/// How codes are chosen for a vector: the nearest ones after a clip, or with error feedback under the metric
/// of whoever reads it (C_Q for keys, W_o'W_o for values; docs/page-format.md).
enum class CoderKind : uint8_t { Round, Feedback };
/// Where `round` takes scale and offset from.
enum class RangeRule : uint8_t {
  MinMax,       // smallest and largest value
  IntegerZero,  // the same, the offset moved to a multiple of the scale (QuaRot, OScaR)
  LloydMax,     // mean and spread: cells of the best 4-level quantizer of a Gaussian (OSCAR's option)
};
/// What the coder `feedback` codes; the other side is left to `round`.
enum class FeedbackSides : uint8_t { Both, Keys, Values };
/// Where the levels of a group of codes lie.
enum class OffsetKind : uint8_t {
  Stored,   // x̂ = scale·code + offset
  Centred,  // x̂ = scale·(code − (2^bits − 1)/2): a scale alone
  Symmetric,  // x̂ = scale·(code − 2^(bits−1)): a scale alone, zero is a level, one more below it than above
};

/// How the rows of a page are stored: src/quant/codecs.def has one line for each.
enum class CodecId : uint8_t {
  None,        // nothing is packed: every page stays full
  Bf16,        // packed pages hold the rows as they are: a layer left alone in a cache that packs others
  Affine,      // codes of 1, 2, 3, 4 or 8 bits, a scale (and offset) per token and group of channels
  Channel,     // the same per channel and group of tokens (KIVI, OScaR, OTT, Kitty)
  Gauss,       // levels for a Gaussian and one norm per vector (TurboQuant)
  Qjl,         // Gauss with one bit less, and the signs of a projection of what is left (TurboQuant's QJL)
  RopeBlocks,  // Gauss with bits per RoPE block by its energy (Block-GTQ)
  HeadGroups,  // per token, after a Hadamard rotation of up to four heads together (RotateKV)
};

/// Whether tokens are divided by their L2 norm over all KV heads before they are coded (OScaR).
enum class TokenNorm : uint8_t { Off, AllHeads };
/// Norm that the codec Gauss stores: of the vector, or such that the decoded vector has it.
enum class NormRule : uint8_t { Corrected, Plain };

/// How one side (K or V) of a layer is stored in packed pages.
struct SideFormat {
  CodecId codec = CodecId::None;
  int bits = 2;
  /// Values that share one scale and offset; 0: the codec's default for the model (group_for).
  int group = 0;
  OffsetKind offset = OffsetKind::Stored;
  // Of Channel:
  TokenNorm norm = TokenNorm::Off;
  int kept = 0;  // tokens of a page whose rows are kept in bf16 (OTT)
  int wide = 0;  // channels of 64 that have 4 bits instead of 2, the strongest of a page and head (Kitty)

  bool operator==(const SideFormat&) const = default;
};

/// Layers that are stored in another way than the method says.
struct LayerOverride {
  std::vector<int> layers;  // from 0, or from the end with -1
  enum class Form : uint8_t {
    Bf16,     // as they are
    Rounded,  // affine codes of bits_k bits on both sides, nearest codes, no clip
    Bits,     // the method itself with bits_k and bits_v
  } form = Form::Bf16;
  int bits_k = 0, bits_v = 0;

  bool operator==(const LayerOverride&) const = default;
};

/// `windowed` (default): the rule above, in prompts too. `exact`: every query of a prompt reads all of the
/// prompt in bf16, as the papers' protocols do; the history is packed when the prompt is done.
enum class PrefillPolicy : uint8_t { Windowed, Exact };

/// Transform + coder + codec under one name ("bf16", "naive2", "quarot2", "oscar2", "kv2").
struct Method {
  std::string name = "bf16";
  SideFormat k, v;
  CoderKind coder = CoderKind::Round;
  RangeRule range = RangeRule::MinMax;
  NormRule norm_rule = NormRule::Corrected;
  TransformKind transform = TransformKind::Identity;
  TransformSides transform_sides = TransformSides::Both;
  int hadamard_block = 0;  // channels that a Hadamard transform mixes; 0: all of a head
  RotationRecipe recipe = RotationRecipe::UHP;
  RotationSharing sharing = RotationSharing::Head;
  ValueTarget value_target = ValueTarget::AttentionOutput;
  Centring centring = Centring::Off;
  /// 0 to 1: instead of a rotation, the eigenvectors of what is stored divided by their spread to this power.
  float whiten_k = 0, whiten_v = 0;
  /// Clip ratio in (0, 1]; 1 turns clipping off; nullopt: per layer from the calibration file.
  std::optional<float> clip_k = 1.0f, clip_v = 1.0f;
  // Of the coder `feedback`:
  FeedbackSides sides = FeedbackSides::Both;
  float damp = 0.02f;  // added to the metric's diagonal, whose mean is 1
  /// Step sizes to start from; 1 is the best one for a Gaussian of the vector's spread. Empty: by the bits.
  std::vector<float> steps;
  int refits = 1;                        // least-squares fits of scale and offset after each start
  std::vector<LayerOverride> overrides;  // a later one wins

  bool quantized() const { return k.codec != CodecId::None; }
  /// Whether V is stored in a basis of the method's.
  bool turns_values() const {
    return transform != TransformKind::Identity && transform_sides != TransformSides::Keys;
  }
  CoderKind coder_k() const { return sides == FeedbackSides::Values ? CoderKind::Round : coder; }
  CoderKind coder_v() const { return sides == FeedbackSides::Keys ? CoderKind::Round : coder; }
  bool needs_calibration() const {
    return transform == TransformKind::Calibrated || coder == CoderKind::Feedback || !clip_k || !clip_v ||
           k.codec == CodecId::RopeBlocks;
  }
  bool operator==(const Method&) const = default;
};

struct CacheSpec {
  Method method;
  int sink_tokens = 64;     // multiple of kPageTokens
  int recent_tokens = 256;  // multiple of kPageTokens
  PrefillPolicy prefill = PrefillPolicy::Windowed;

  int sink_pages() const { return sink_tokens / kPageTokens; }
  int recent_pages() const { return recent_tokens / kPageTokens; }
  bool operator==(const CacheSpec&) const = default;

  /// "oscar2:clip-k=0.96,clip-v=0.92,group=32" -> a spec with default windows. Every parameter it prints, it
  /// parses. Errors: BadArgument for an unknown method (lists them), parameter (lists those of the method) or
  /// value.
  static CacheSpec parse(std::string_view method_text);
  /// The canonical text of the method with all parameters that differ from the method's row.
  std::string method_text() const;
  /// One line for people: method, windows, policy.
  std::string describe() const;
  /// Throws BadArgument unless windows and formats fit this head_dim, saying what would.
  void validate(int head_dim) const;
  /// Stable across runs and machines; part of every cache key and file.
  uint64_t hash() const;
};

/// Names and one-line descriptions of all methods, in table order.
struct MethodInfo {
  std::string name, description;
};
const std::vector<MethodInfo>& methods();

}  // namespace kv2
