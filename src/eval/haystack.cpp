// SPDX-License-Identifier: Apache-2.0
#include "eval/haystack.h"

#include <algorithm>
#include <set>

#include "base/check.h"

namespace kv2 {
namespace {

using Ids = std::vector<int32_t>;

int64_t size_of(const Ids& ids) {
  return static_cast<int64_t>(ids.size());
}

void append(Ids& to, const Ids& from) {
  to.insert(to.end(), from.begin(), from.end());
}

/// One key with its values, in the order of the text once placed.
struct Key {
  std::string name;
  std::vector<std::string> values;
  int64_t first_at = -1;  // token of its first needle
};

/// A needle on its way into the text.
struct Needle {
  Ids ids;
  size_t key;
  std::string value;
  double depth;
};

constexpr int64_t kShortest = 1000;  // tokens of a haystack in a training text

}  // namespace

int64_t HaystackSet::n_questions() const {
  int64_t n = 0;
  for (const Haystack& h : haystacks) n += static_cast<int64_t>(h.questions.size());
  return n;
}

int64_t HaystackSet::n_tokens() const {
  int64_t n = 0;
  for (const Haystack& h : haystacks) n += size_of(h.ids);
  return n;
}

int HaystackSet::most_questions() const {
  size_t most = 1;
  for (const Haystack& h : haystacks) most = std::max(most, h.questions.size());
  return static_cast<int>(most);
}

std::vector<int32_t> HaystackSet::all_ids() const {
  std::vector<int32_t> out;
  for (const Haystack& h : haystacks) {
    append(out, h.ids);
    for (const RetrievalQuestion& q : h.questions) append(out, q.question), append(out, q.answer);
  }
  return out;
}

int64_t HaystackSet::context(int64_t answer_tokens) const {
  int64_t most = 0;
  for (const Haystack& h : haystacks)
    for (const RetrievalQuestion& q : h.questions)
      most =
          std::max(most, size_of(h.ids) + size_of(q.question) + std::max(size_of(q.answer), answer_tokens));
  return most;
}

/// One haystack being made: keys, then needles, then questions (which say how much room they need), then the
/// text around.
class HaystackWriter::Draft {
 public:
  Draft(const HaystackWriter& writer, const HaystackRequest& request, Dice dice)
      : writer_(writer), request_(request), task_(request.task), dice_(dice) {
    const Ids start = writer.tokenizer_.encode("", Tokenizer::Special::AsText, Tokenizer::Bos::AsModelSays);
    if (!start.empty() && start.front() == writer.tokenizer_.bos()) preamble_.push_back(start.front());
    append(preamble_, writer.piece(preamble_text(task_.values)));
  }

  Haystack make() {
    if (task_.haystack == HaystackKind::Needles)
      draw_all_that_fit();
    else
      for (int i = 0; i < task_.n_keys; i++) draw_key();
    dice_.shuffle(needles_);
    place();
    ask();
    fill();
    return std::move(out_);
  }

 private:
  std::string fresh(NeedleKind kind) {
    while (true) {  // the lists are far larger than what a context holds
      std::string s = random_needle(kind, writer_.words_.words, dice_);
      if (used_.insert(s).second) return s;
      KV2_CHECK(++n_repeats_ < 1 << 20, "no new needle after {} of them", used_.size());
    }
  }

  /// A key, its values and their needles; returns the tokens of the needles.
  int64_t draw_key() {
    Key key{fresh(task_.keys), {}};
    int64_t tokens = 0;
    for (int i = 0; i < task_.n_values; i++) {
      const std::string value = fresh(task_.values);
      needles_.push_back({writer_.piece(needle_text(task_.values, key.name, value)), keys_.size(), value, 0});
      tokens += size_of(needles_.back().ids);
      longest_value_ = std::max(longest_value_, size_of(writer_.piece(" " + value)));
    }
    longest_key_ = std::max(longest_key_, size_of(writer_.piece(" " + key.name)));
    keys_.push_back(std::move(key));
    needle_tokens_ += tokens;
    return tokens;
  }

  /// An upper bound of what a question of these keys takes: the frame, two lists of keys, the answer.
  int64_t room_bound() const {
    const std::vector<std::string> none(1);
    const int64_t n_answers = int64_t{task_.n_queries} * task_.n_values;
    const int64_t frame = size_of(writer_.piece(question_text(task_.values, none, n_answers)));
    return frame + 8 + 2 * task_.n_queries * (longest_key_ + 3) +
           std::max(request_.answer_tokens, n_answers * (longest_value_ + 2) + 2);
  }

  void draw_all_that_fit() {
    while (true) {
      const int64_t tokens = draw_key();
      if (size_of(preamble_) + needle_tokens_ + room_bound() <= request_.length) continue;
      if (static_cast<int>(keys_.size()) <= task_.n_queries)
        too_short(size_of(preamble_) + needle_tokens_ / size_of_keys() * (task_.n_queries + 1) +
                  room_bound());
      needle_tokens_ -= tokens;
      used_.erase(keys_.back().name);
      keys_.pop_back();
      needles_.resize(needles_.size() - task_.n_values);
      return;
    }
  }
  int64_t size_of_keys() const { return static_cast<int64_t>(keys_.size()); }

  [[noreturn]] void too_short(int64_t needed) const {
    throw_error(ErrorCode::BadArgument,
                "task {}: {} tokens are too short for its needles and a question; {} are enough",
                task_.text(), request_.length, (needed + 63) / 64 * 64);
  }

  /// Depths, and with them the order in the text.
  void place() {
    const bool given = !request_.depths.empty();
    KV2_CHECK(!given || request_.depths.size() == needles_.size(), "{} depths for {} needles",
              request_.depths.size(), needles_.size());
    const bool packed = task_.haystack == HaystackKind::Needles;
    for (size_t i = 0; i < needles_.size(); i++)
      needles_[i].depth = packed ? 0 : given ? request_.depths[i] : dice_.uniform();
    std::stable_sort(needles_.begin(), needles_.end(),
                     [](const Needle& a, const Needle& b) { return a.depth < b.depth; });
    for (const Needle& n : needles_) keys_[n.key].values.push_back(n.value);
    out_.n_needles = static_cast<int64_t>(needles_.size());
  }

  void ask() {
    std::vector<size_t> order(keys_.size());
    for (size_t i = 0; i < order.size(); i++) order[i] = i;
    dice_.shuffle(order);
    const auto width = static_cast<size_t>(task_.n_queries);
    for (size_t i = 0; i + width <= order.size(); i += width) {
      if (static_cast<int>(out_.questions.size()) == request_.max_questions) break;
      std::vector<std::string> names, values;
      for (size_t j = i; j < i + width; j++) {
        const Key& key = keys_[order[j]];
        names.push_back(key.name);
        values.insert(values.end(), key.values.begin(), key.values.end());
      }
      asked_.push_back(order[i]);
      out_.questions.push_back({writer_.piece(question_text(task_.values, names, values.size())),
                                writer_.piece(answer_text(values)), values, 0});
    }
  }

  /// Sentences until the text has exactly its tokens; the first one loses its beginning for that.
  void fill() {
    int64_t room = 0;
    for (const RetrievalQuestion& q : out_.questions)
      room = std::max(room, size_of(q.question) + std::max(size_of(q.answer), request_.answer_tokens));
    const int64_t total = request_.length - room, filler = total - size_of(preamble_) - needle_tokens_;
    if (filler < 0) too_short(request_.length - filler);
    std::vector<Ids> sentences;
    int64_t tokens = 0;
    while (tokens < filler) {
      sentences.push_back(writer_.piece(writer_.sentence(task_.haystack, dice_)));
      tokens += size_of(sentences.back());
    }
    out_.ids = preamble_;
    out_.ids.reserve(static_cast<size_t>(total));
    const bool packed =
        task_.haystack == HaystackKind::Needles;  // nothing between: what is left over goes first
    int64_t cut = tokens - filler, filled = 0;
    size_t next = 0;
    for (const Ids& s : sentences) {
      while (next < needles_.size() && !packed &&
             static_cast<double>(filled) >= needles_[next].depth * static_cast<double>(filler))
        put(needles_[next++]);
      const int64_t from = std::min(cut, size_of(s));
      cut -= from;
      out_.ids.insert(out_.ids.end(), s.begin() + from, s.end());
      filled += size_of(s) - from;
    }
    while (next < needles_.size()) put(needles_[next++]);
    KV2_CHECK(size_of(out_.ids) == total, "{} tokens of {}", out_.ids.size(), total);
    for (size_t i = 0; i < asked_.size(); i++)
      out_.questions[i].depth = static_cast<double>(keys_[asked_[i]].first_at) / static_cast<double>(total);
  }

  void put(const Needle& n) {
    Key& key = keys_[n.key];
    if (key.first_at < 0) key.first_at = size_of(out_.ids);
    append(out_.ids, n.ids);
  }

  const HaystackWriter& writer_;
  const HaystackRequest& request_;
  const RetrievalTask& task_;
  Dice dice_;
  Ids preamble_;
  std::set<std::string> used_;
  std::vector<Key> keys_;
  std::vector<Needle> needles_;
  std::vector<size_t> asked_;  // first key of each question
  int64_t needle_tokens_ = 0, longest_key_ = 0, longest_value_ = 0;
  int n_repeats_ = 0;
  Haystack out_;
};

HaystackWriter::HaystackWriter(const Tokenizer& tokenizer, WordList words, std::vector<std::string> essay)
    : tokenizer_(tokenizer), words_(std::move(words)), essay_(std::move(essay)) {}

std::vector<int32_t> HaystackWriter::piece(const std::string& text) const {
  // SentencePiece puts a space of its own before a text.
  const bool drop = tokenizer_.strips_leading_space() && text.starts_with(' ');
  return tokenizer_.encode(std::string_view(text).substr(drop ? 1 : 0), Tokenizer::Special::AsText,
                           Tokenizer::Bos::Never);
}

std::string HaystackWriter::sentence(HaystackKind kind, Dice& dice) const {
  if (kind != HaystackKind::Essay) return dice.pick(noise_sentences());
  return essay_.empty() ? essay_sentence(words_.words, dice) : dice.pick(essay_);
}

Haystack HaystackWriter::make(const HaystackRequest& request, uint64_t seed, int64_t index) const {
  if (request.max_questions < 1 || request.answer_tokens < 0)
    throw_error(ErrorCode::BadArgument, "a haystack with {} questions and room for {} answer tokens",
                request.max_questions, request.answer_tokens);
  const std::string name = fmt::format("{} {}", request.task.text(), request.length);
  return Draft(*this, request, Dice(seed_for(seed, name, index))).make();
}

std::vector<int32_t> HaystackWriter::training_text(const std::vector<RetrievalTask>& tasks, int64_t length,
                                                   int n_sequences, uint64_t seed) const {
  KV2_CHECK(!tasks.empty());
  if (length < kShortest || n_sequences < 1)
    throw_error(ErrorCode::BadArgument,
                "training text of {} sequences of {} tokens: at least one of {} tokens is needed",
                n_sequences, length, kShortest);
  Dice dice(seed_for(seed, "training text", length));
  Ids out;
  int64_t index = 0;
  for (int i = 0; i < n_sequences; i++) {
    Ids sequence;
    while (size_of(sequence) < length) {
      const int64_t most = std::max(kShortest, length - size_of(sequence));
      const int64_t part = kShortest + dice.below(most - kShortest + 1);
      const RetrievalTask& task = tasks[static_cast<size_t>(index) % tasks.size()];
      const Haystack h = make({.task = task,
                               .length = std::max<int64_t>(kShortest, part * 3 / 4),
                               .answer_tokens = 0,
                               .max_questions = 1 << 16},
                              seed, index++);
      append(sequence, h.ids);
      const int64_t end = size_of(sequence) + size_of(h.ids) / 3;
      for (const RetrievalQuestion& q : h.questions) {
        if (size_of(sequence) >= end) break;
        append(sequence, q.question);
        append(sequence, q.answer);
        if (tokenizer_.eos() >= 0) sequence.push_back(tokenizer_.eos());
      }
    }
    sequence.resize(static_cast<size_t>(length));
    append(out, sequence);
  }
  return out;
}

}  // namespace kv2
