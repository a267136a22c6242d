// SPDX-License-Identifier: Apache-2.0
#include "eval/needle_text.h"

#include <algorithm>

#include "base/check.h"

namespace kv2 {
namespace {

const char* singular(NeedleKind kind) {
  return kind == NeedleKind::Word ? "word" : kind == NeedleKind::Number ? "number" : "uuid";
}

// The pieces of sentences that needle-15m was trained with; {} is a word.
const std::vector<std::string> kPatterns = {" The {} {} was {} with a {}.",
                                            " A {} {} is {} for the {} and the {}.",
                                            " All {} {} the {} within {}.",
                                            " What {} will {} the {}?",
                                            " The {} of {} is to {} about the {}, and the {} is {}.",
                                            " Some {}, {} and {} were {} in the {}.",
                                            " One {} {} from the {}: the {} {}.",
                                            " {} and {} are {}.",
                                            " Make the {} {}, and {} it with {}."};

/// "a", "a, and b", "a, b, and c"
std::string listed(const std::vector<std::string>& keys) {
  std::string out;
  for (size_t i = 0; i < keys.size(); i++)
    out += (i == 0 ? "" : i + 1 == keys.size() ? ", and " : ", ") + keys[i];
  return out;
}

std::string random_uuid(Dice& dice) {
  uint64_t bits[2] = {dice.next(), dice.next()};
  bits[0] = (bits[0] & ~uint64_t{0xf000}) | 0x4000;                // version 4
  bits[1] = (bits[1] & ~(uint64_t{3} << 62)) | uint64_t{2} << 62;  // variant of RFC 4122
  const std::string hex = fmt::format("{:016x}{:016x}", bits[0], bits[1]);
  return hex.substr(0, 8) + "-" + hex.substr(8, 4) + "-" + hex.substr(12, 4) + "-" + hex.substr(16, 4) + "-" +
         hex.substr(20);
}

}  // namespace

std::string preamble_text(NeedleKind values) {
  return fmt::format(
      "Some special magic {0}s are hidden within the following text. Make sure to memorize it. I will quiz "
      "you "
      "about the {0}s afterwards.\n",
      singular(values));
}

std::string needle_text(NeedleKind values, const std::string& key, const std::string& value) {
  return fmt::format(" One of the special magic {}s for {} is: {}.", singular(values), key, value);
}

std::string question_text(NeedleKind values, const std::vector<std::string>& keys, size_t n_values) {
  const std::string key = listed(keys), kind = singular(values);
  const std::string asked = "magic " + kind + (n_values > 1 ? "s" : "") + " for " + key;
  return fmt::format(
      "\nWhat {} the special {} mentioned in the provided text? The special {} mentioned in the "
      "provided text {}",
      n_values > 1 ? "are all" : "is", asked, asked, n_values > 1 ? "are" : "is");
}

std::string answer_text(const std::vector<std::string>& values) {
  std::string out;
  for (const std::string& v : values) out += (out.empty() ? " " : ", ") + v;
  return out + ".";
}

std::string random_needle(NeedleKind kind, const std::vector<std::string>& words, Dice& dice) {
  if (kind == NeedleKind::Uuid) return random_uuid(dice);
  if (kind == NeedleKind::Word) {
    const std::string first = dice.pick(words);
    return first + "-" + dice.pick(words);
  }
  std::string out;
  for (int i = 0; i < 7; i++) out += static_cast<char>('0' + dice.below(10));
  return out;
}

const std::vector<std::string>& noise_sentences() {
  static const std::vector<std::string> all = {" The rain is cold.",
                                               " The river was deep and slow.",
                                               " Come back with the paper.",
                                               " The hill is far from here.",
                                               " The wind will turn.",
                                               " Here is the road and there is the lake.",
                                               " The light is low.",
                                               " The old tree was tall.",
                                               " Some snow is on the roof.",
                                               " The bread was warm and the tea is sweet.",
                                               " Walk to the end of the line.",
                                               " The moon is bright.",
                                               " The stone is hard and the sand is soft.",
                                               " One step and then the next."};
  return all;
}

std::string essay_sentence(const std::vector<std::string>& words, Dice& dice) {
  const std::string& pattern = dice.pick(kPatterns);
  std::string out;
  for (size_t i = 0; i < pattern.size(); i++) {
    if (pattern[i] != '{') {
      out += pattern[i];
      continue;
    }
    out += dice.pick(words);
    i++;  // the closing brace
  }
  return out;
}

std::vector<std::string> sentences_of(const std::string& text, const std::string& name) {
  std::vector<std::string> out;
  std::string sentence;
  const auto finish = [&] {
    if (sentence.size() > 1) out.push_back(sentence);
    sentence.clear();
  };
  for (size_t i = 0; i < text.size(); i++) {
    const auto is_space = [](char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r' || c == '\f'; };
    if (!is_space(text[i])) {
      if (sentence.empty()) sentence.assign(1, ' ');  // g++ 12 warns of = " "
      sentence += text[i];
      continue;
    }
    if (sentence.empty() || sentence.back() == ' ') continue;
    const char last = sentence.back();
    if (last == '.' || last == '!' || last == '?')
      finish();
    else
      sentence += ' ';
  }
  while (!sentence.empty() && sentence.back() == ' ') sentence.pop_back();
  finish();
  if (out.size() < 20)
    throw_error(ErrorCode::BadArgument, "{}: {} sentences, an essay haystack needs 20 at least", name,
                out.size());
  return out;
}

std::vector<std::string> frame_words() {
  std::string all;
  for (const NeedleKind kind : {NeedleKind::Word, NeedleKind::Number, NeedleKind::Uuid})
    all += preamble_text(kind) + needle_text(kind, "{}", "{}") + question_text(kind, {"{}", "{}"}, 2) +
           question_text(kind, {"{}"}, 1);
  for (const std::string& p : kPatterns) all += p;
  std::vector<std::string> out;
  std::string word;
  for (const char c : all + " ") {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (letter) word += c;
    if (!letter && !word.empty()) {
      out.push_back(word);
      word.clear();
    }
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

}  // namespace kv2
