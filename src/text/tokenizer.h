// SPDX-License-Identifier: Apache-2.0
// Tokenizer: text <-> token ids. Built from a TokenizerSpec, which the engine fills from GGUF metadata or
// from tokenizer.json. Immutable and thread-safe after construction. Hostile vocabularies are refused, not
// trusted.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace kv2 {

enum class TokenizerKind : uint8_t {
  ByteLevelBpe,   // GPT-2 family: GGUF "gpt2", tokenizer.json ByteLevel
  SentencePiece,  // scores, "▁" for space, byte tokens <0x00>: GGUF "llama"
};

enum class TokenType : uint8_t {
  Normal = 1,
  Unknown = 2,
  Control = 3,
  UserDefined = 4,
  Unused = 5,
  Byte = 6
};

struct TokenizerSpec {
  TokenizerKind kind = TokenizerKind::ByteLevelBpe;
  std::string pre;  // "gpt-2", "llama-bpe", "qwen2", "smollm", …: names of GGUF's tokenizer.ggml.pre
  std::vector<std::string> tokens;  // as stored: byte-level tokens in the GPT-2 alphabet
  std::vector<TokenType> types;     // one per token; empty: all Normal
  std::vector<float> scores;        // SentencePiece
  std::vector<std::string> merges;  // "left right", best first; byte-level BPE
  int32_t bos = -1, eos = -1, unk = -1;
  bool add_bos = false, add_eos = false, add_space_prefix = true /* SentencePiece only */;
  bool ignore_merges = false;  // a pre-token that is itself a token is taken whole (Llama 3)
};

class Tokenizer {
 public:
  /// Errors: BadFile (no merges, a merge of unknown tokens, duplicate or empty vocabulary: what and where),
  /// Unsupported pre-tokenizer (lists those known).
  explicit Tokenizer(TokenizerSpec spec);
  ~Tokenizer();

  /// A Hugging Face tokenizer.json (its text), and tokenizer_config.json beside it ("" when there is none),
  /// which names the begin- and end-of-text tokens. Errors: BadFile, Unsupported (model or pre-tokenizer;
  /// lists).
  static std::unique_ptr<Tokenizer> from_json(std::string_view json) { return from_json(json, {}); }
  static std::unique_ptr<Tokenizer> from_json(std::string_view json, std::string_view tokenizer_config);

  enum class Special : uint8_t { Parse, AsText };  // whether "<|im_end|>" in the text becomes the token
  enum class Bos : uint8_t { AsModelSays, Never };
  /// Any bytes are text; ill-formed UTF-8 comes back from decode() as it was, if the vocabulary has all 256
  /// bytes (see n_missing_bytes; SmolLM2's lacks 21 rare ones, which are dropped as its reference does).
  /// Non-special added tokens are matched with Special::AsText, too. Bos::AsModelSays also adds the
  /// end-of-text token where the model asks for it, and no second begin-of-text token to a text that begins
  /// with one. Qwen 2's and 3's text is normalized (NFC) first. Errors: BadArgument for a text over 1 GiB.
  std::vector<int32_t> encode(std::string_view text, Special special, Bos bos) const;
  /// All pieces together, raw bytes; AsText: special tokens are shown. SentencePiece: without the leading
  /// space that encode() put there. Ids outside the vocabulary have no text.
  std::string decode(const std::vector<int32_t>& tokens, Special special) const;
  /// Bytes of one token, exactly as they join into text; empty for special tokens unless shown.
  std::string piece(int32_t token, Special special) const;

  int32_t n_tokens() const;
  int n_missing_bytes() const;        // of 256, those without a token
  bool strips_leading_space() const;  // of the first piece of a text: SentencePiece with a space prefix
  int32_t bos() const;
  int32_t eos() const;
  bool is_special(int32_t token) const;
  /// -1 when there is none.
  int32_t find(std::string_view token_text) const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Streams tokens out as text and never splits a UTF-8 sequence: bytes are held back until they are complete
/// (or known to be invalid, when they become U+FFFD). All it returns, joined, is decode(tokens,
/// Special::Parse) with every ill-formed part as U+FFFD.
class Detokenizer {
 public:
  /// OfText: the tokens begin a text, whose leading space SentencePiece added. Continuation: they go on after
  /// others.
  enum class Start : uint8_t { OfText, Continuation };
  explicit Detokenizer(const Tokenizer& tokenizer) : Detokenizer(tokenizer, Start::OfText) {}
  Detokenizer(const Tokenizer& tokenizer, Start start)
      : tokenizer_(tokenizer), first_(start == Start::OfText) {}
  std::string push(int32_t token);
  std::string finish();  // what was held back

 private:
  const Tokenizer& tokenizer_;
  std::string held_;
  bool first_;
};

}  // namespace kv2
