// SPDX-License-Identifier: Apache-2.0
// The steps of a tokenizer.json around its model: normalizer, pre-tokenizer, post-processor. Each is done
// exactly or refused by name.
#include "text/json_pipeline.h"

#include <cctype>

#include "text/utf8.h"

namespace kv2 {
namespace {

using namespace json;

std::string literal_pattern(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const bool plain = static_cast<uint8_t>(c) >= 0x80 || std::isalnum(static_cast<unsigned char>(c));
    out += plain ? std::string(1, c) : fmt::format("\\x{{{:02x}}}", static_cast<uint8_t>(c));
  }
  return out;
}

class PipelineReader {
 public:
  PipelineReader(object root, TokenizerRecipe& recipe) : root_(root), recipe_(recipe) {}

  void run() {
    read_normalizer();
    read_pre_tokenizer();
    read_post_processor();
  }

 private:
  void read_normalizer() {
    bool replaces = false, prepends = false;
    for (const object step : steps_at(root_, "normalizer", "normalizers", "normalizer")) {
      const std::string_view type = type_of(step);
      if (type == "NFC") {
        recipe_.nfc = true;
      } else if (type == "Prepend" && text_or(step, "prepend", "") == "▁") {
        prepends = true;
      } else if (type == "Replace" && text_or(step, "content", "") == "▁" && replaces_space(step)) {
        replaces = true;
      } else {
        throw_error(
            ErrorCode::Unsupported,
            "normalizer {} is not supported; supported are NFC, and Prepend and Replace of a space by \"▁\"",
            shown(type));
      }
    }
    if (prepends && !replaces)
      throw_error(ErrorCode::Unsupported,
                  "a normalizer that prepends \"▁\" but leaves spaces as they are is not supported");
    if (prepends) recipe_.prefix = SpacePrefix::Each;
    spaces_become_symbols_ = replaces;
    for (AddedToken& t : recipe_.added) {
      // normalized tokens are looked for in normalized text, so they are normalized themselves
      if (t.normalized && recipe_.nfc) t.content = to_nfc(t.content);
      if (t.normalized && replaces && (prepends || t.content.find(' ') != std::string::npos))
        throw_error(ErrorCode::Unsupported,
                    "added token {} is matched behind a normalizer of spaces, which is not supported",
                    shown(t.content));
    }
  }

  static bool replaces_space(object step) {
    object pattern;
    return at(step, "pattern").get(pattern) == simdjson::SUCCESS && text_or(pattern, "String", "") == " ";
  }

  void read_pre_tokenizer() {
    const std::vector<object> steps = steps_at(root_, "pre_tokenizer", "pretokenizers", "pre-tokenizer");
    bool byte_level = false;
    for (size_t i = 0; i < steps.size(); i++) {
      const object step = steps[i];
      const std::string_view type = type_of(step);
      if (byte_level)
        throw_error(ErrorCode::Unsupported, "pre-tokenizer {} behind ByteLevel is not supported",
                    shown(type));
      if (type == "ByteLevel") {
        byte_level = true;
        read_byte_level(step, i == 0);
      } else if (type == "Split") {
        read_split(step);
      } else if (type == "Digits") {
        recipe_.split.push_back({flag(step, "individual_digits", false) ? R"(\p{N})" : R"(\p{N}+)"});
      } else if (type == "Metaspace" && steps.size() == 1) {
        read_metaspace(step);
      } else {
        throw_error(ErrorCode::Unsupported,
                    "pre-tokenizer {} is not supported here; supported are ByteLevel, Split, Digits, "
                    "sequences of them, "
                    "and Metaspace alone",
                    shown(type));
      }
    }
    recipe_.kind = byte_level ? TokenizerKind::ByteLevelBpe : TokenizerKind::SentencePiece;
    if (byte_level == spaces_become_symbols_ || (!byte_level && !recipe_.split.empty()))
      throw_error(
          ErrorCode::Unsupported,
          "a BPE tokenizer is supported with a ByteLevel pre-tokenizer, or with spaces as \"▁\" and no other "
          "pre-tokenizer; this one is neither");
  }

  void read_byte_level(object step, bool is_first) {
    if (flag(step, "add_prefix_space", true)) {
      if (!is_first)
        throw_error(ErrorCode::Unsupported,
                    "ByteLevel with add_prefix_space behind another pre-tokenizer is not supported");
      recipe_.prefix = SpacePrefix::EachUnlessThere;
    }
    if (!flag(step, "use_regex", true)) return;
    TokenizerRecipe gpt2;
    apply_pre_tokenizer("gpt-2", gpt2);
    recipe_.split.push_back(gpt2.split.at(0));
  }

  void read_split(object step) {
    const std::string_view behavior = text_or(step, "behavior", "");
    const bool invert = flag(step, "invert", false);
    if (behavior != "Isolated" && !(behavior == "Removed" && invert))
      throw_error(ErrorCode::Unsupported,
                  "pre-tokenizer Split with behavior {} is not supported; supported are Isolated, and "
                  "Removed with invert",
                  shown(behavior));
    const object pattern = object_at(step, "pattern", "pre-tokenizer Split");
    const std::string_view regex = text_or(pattern, "Regex", ""), text = text_or(pattern, "String", "");
    if (regex.empty() && text.empty()) throw_error(ErrorCode::BadFile, "pre-tokenizer Split has no pattern");
    recipe_.split.push_back({regex.empty() ? literal_pattern(text) : std::string(regex),
                             behavior == "Removed" ? Gaps::Drop : Gaps::Keep});
  }

  void read_metaspace(object step) {
    if (text_or(step, "replacement", "▁") != "▁")
      throw_error(ErrorCode::Unsupported, "pre-tokenizer Metaspace with replacement {} is not supported",
                  shown(text_or(step, "replacement", "")));
    if (flag(step, "split", true))
      throw_error(ErrorCode::Unsupported,
                  "pre-tokenizer Metaspace with split is not supported; supported is split: false");
    const std::string_view scheme =
        text_or(step, "prepend_scheme", flag(step, "add_prefix_space", true) ? "always" : "never");
    if (scheme == "always")
      recipe_.prefix = SpacePrefix::EachUnlessThere;
    else if (scheme == "first")
      recipe_.prefix = SpacePrefix::FirstUnlessThere;
    else if (scheme != "never")
      throw_error(ErrorCode::BadFile, "pre-tokenizer Metaspace has the prepend_scheme {}", shown(scheme));
    spaces_become_symbols_ = true;
  }

  void read_post_processor() {
    for (const object step : steps_at(root_, "post_processor", "processors", "post-processor")) {
      const std::string_view type = type_of(step);
      if (type == "ByteLevel") continue;  // offsets only
      if (type != "TemplateProcessing")
        throw_error(ErrorCode::Unsupported,
                    "post-processor {} is not supported; supported are TemplateProcessing and ByteLevel",
                    shown(type));
      read_template(step);
    }
  }

  void read_template(object step) {
    array single;
    if (at(step, "single").get(single) != simdjson::SUCCESS)
      throw_error(ErrorCode::BadFile, "TemplateProcessing has no \"single\"");
    bool behind_text = false;
    for (const element e : single) {
      object part, special;
      if (e.get(part) != simdjson::SUCCESS)
        throw_error(ErrorCode::BadFile, "TemplateProcessing has a part that is no object");
      if (at(part, "SpecialToken").get(special) != simdjson::SUCCESS) {
        behind_text = true;
        continue;
      }
      const std::string_view name = text_or(special, "id", "");
      bool& adds = behind_text ? recipe_.add_eos : recipe_.add_bos;
      int32_t& id = behind_text ? recipe_.eos : recipe_.bos;
      if (adds)
        throw_error(ErrorCode::Unsupported,
                    "TemplateProcessing with two special tokens on one side of the text is not supported");
      adds = true;
      id = find(name);
      if (id < 0)
        throw_error(ErrorCode::BadFile, "TemplateProcessing adds {}, which is not in the vocabulary",
                    shown(name));
    }
  }

  int32_t find(std::string_view token) const {
    for (const AddedToken& t : recipe_.added)
      if (t.content == token) return t.id;
    for (size_t i = 0; i < recipe_.tokens.size(); i++)
      if (recipe_.tokens[i] == token) return static_cast<int32_t>(i);
    return -1;
  }

  object root_;
  TokenizerRecipe& recipe_;
  bool spaces_become_symbols_ = false;
};

}  // namespace

void read_pipeline(object root, TokenizerRecipe& recipe) {
  PipelineReader(root, recipe).run();
}

}  // namespace kv2
