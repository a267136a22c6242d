// SPDX-License-Identifier: Apache-2.0
// Haystacks as text: how many needles, where, how long, asked how; and as files.
#include "eval/haystack.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <random>
#include <set>

#include "base/file.h"
#include "eval/haystack_file.h"
#include "eval/npy.h"
#include "eval/test_letters.h"
#include "kv2/error.h"
#include "text/test_vocabulary.h"

namespace kv2 {
namespace {

/// Byte-level BPE with some random merges: any text round-trips.
const Tokenizer& tokenizer() {
  static std::mt19937 random(4);
  static const Tokenizer t(random_bpe(random, 120));
  return t;
}

const HaystackWriter& writer() {
  static const HaystackWriter w(tokenizer(), WordList::built_in(), {});
  return w;
}

std::string text_of(const std::vector<int32_t>& ids) {
  return tokenizer().decode(ids, Tokenizer::Special::AsText);
}

int count(const std::string& text, const std::string& piece) {
  int n = 0;
  for (size_t at = text.find(piece); at != std::string::npos; at = text.find(piece, at + 1)) n++;
  return n;
}

HaystackRequest request(const std::string& task, int64_t length) {
  return {.task = RetrievalTask::parse(task),
          .length = length,
          .answer_tokens = 128,
          .max_questions = 16,
          .depths = {}};
}

TEST(Haystack, HasItsTokensNeedlesAndQuestions) {
  struct Expected {
    const char* task;
    size_t needles, questions, values;  // needles 0: many
  };
  for (const Expected& e : std::vector<Expected>{{"niah_single_1", 1, 1, 1},
                                                 {"niah_single_2", 1, 1, 1},
                                                 {"niah_single_3", 1, 1, 1},
                                                 {"niah_multikey_1", 4, 4, 1},
                                                 {"niah_multikey_2", 0, 16, 1},
                                                 {"niah_multikey_3", 0, 16, 1},
                                                 {"niah_multivalue", 16, 4, 4},
                                                 {"niah_multiquery", 16, 4, 4},
                                                 {"multi-query:haystack=needles,n-queries=3", 0, 16, 3}})
    for (const int64_t length : {6000, 9001}) {
      const Haystack h = writer().make(request(e.task, length), 1, 0);
      int64_t longest = 0;
      for (const RetrievalQuestion& q : h.questions)
        longest = std::max<int64_t>(longest, q.question.size() + std::max<int64_t>(128, q.answer.size()));
      EXPECT_EQ(static_cast<int64_t>(h.ids.size()) + longest, length) << e.task;
      const std::string text = text_of(h.ids);
      EXPECT_EQ(count(text, " One of the special magic "), h.n_needles) << e.task;
      if (e.needles > 0) {
        EXPECT_EQ(h.n_needles, static_cast<int64_t>(e.needles)) << e.task;
      } else {
        EXPECT_GT(h.n_needles, 20) << e.task;
      }
      ASSERT_EQ(h.questions.size(), e.questions) << e.task;
      EXPECT_EQ(text.find("Some special magic "), 0u);
      EXPECT_TRUE(text.ends_with('.') || text.ends_with('?')) << e.task;
      for (const RetrievalQuestion& q : h.questions) {
        ASSERT_EQ(q.values.size(), e.values) << e.task;
        std::string answer;
        size_t at = 0;
        for (const std::string& v : q.values) {
          EXPECT_EQ(count(text, " is: " + v + "."), 1) << e.task << " " << v;
          answer += (answer.empty() ? " " : ", ") + v;
          if (h.questions.size() == 4 &&
              e.task == std::string("niah_multivalue")) {  // in the order of the text
            EXPECT_GT(text.find(v), at);
            at = text.find(v);
          }
        }
        EXPECT_EQ(text_of(q.answer), answer + ".");
        const std::string asked = text_of(q.question);
        EXPECT_EQ(
            asked.find(e.values > 1 ? "\nWhat are all the special magic " : "\nWhat is the special magic "),
            0u);
        EXPECT_TRUE(asked.ends_with(e.values > 1 ? " are" : " is")) << asked;
      }
    }
}

TEST(Haystack, NeedlesLieWhereTheyAreWanted) {
  for (const double depth : {0.0, 0.3, 0.75, 1.0}) {
    HaystackRequest r = request("single", 8000);
    r.depths = {depth};
    const Haystack h = writer().make(r, 1, 0);
    EXPECT_NEAR(h.questions[0].depth, depth, 0.03);
    const std::string text = text_of(h.ids);
    const auto at = static_cast<double>(text.find(" One of the special")) / static_cast<double>(text.size());
    EXPECT_NEAR(at, depth, 0.04);
  }
}

TEST(Haystack, IsMadeBySeedAndIndexAlone) {
  for (const char* task : {"niah_single_2", "niah_multikey_3", "niah_multiquery"}) {
    const HaystackRequest r = request(task, 5000);
    const Haystack one = writer().make(r, 7, 3);
    EXPECT_EQ(writer().make(r, 7, 3), one);
    EXPECT_NE(writer().make(r, 7, 4), one);
    EXPECT_NE(writer().make(r, 8, 3), one);
    HaystackRequest fewer = r;
    fewer.max_questions = 2;
    const Haystack some = writer().make(fewer, 7, 3);
    ASSERT_EQ(some.questions.size(), std::min<size_t>(2, one.questions.size()));
    EXPECT_EQ(some.questions.back().values, one.questions[some.questions.size() - 1].values)
        << "the first ones stay";
  }
}

TEST(Haystack, SaysHowLongItMustBe) {
  for (const char* task : {"niah_single_1", "niah_multikey_3", "niah_multivalue"}) {
    try {
      writer().make(request(task, 100), 1, 0);
      ADD_FAILURE() << task << " fits in 100 tokens";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::BadArgument);
      const std::string what = e.what();
      const size_t at = what.find("question; ");
      ASSERT_NE(at, std::string::npos) << what;
      const int64_t enough = std::stoll(what.substr(at + 10));
      EXPECT_NO_THROW(writer().make(request(task, enough + 64), 1, 0)) << what;
    }
  }
}

TEST(Haystack, TakesEssaysOfAText) {
  std::string text;
  for (int i = 0; i < 30; i++) text += "Sentence number\n\t" + std::to_string(i) + " ends here!  Does it? ";
  const HaystackWriter own(tokenizer(), WordList::built_in(), sentences_of(text, "t.txt"));
  const std::string made = text_of(own.make(request("niah_single_2", 5000), 1, 0).ids);
  EXPECT_GT(count(made, " Does it?"), 10);
  EXPECT_GT(count(made, " ends here! "), 10);
  EXPECT_GT(count(made, " Sentence number 7 ends here!"), 0);
  EXPECT_EQ(sentences_of(text, "t.txt").size(), 60u);
  EXPECT_THROW(sentences_of("One. Two.", "t.txt"), Error);
}

TEST(Haystack, TrainingTextIsHaystacksWithAnswers) {
  const std::vector<RetrievalTask> tasks = {RetrievalTask::parse("niah_multikey_2"),
                                            RetrievalTask::parse("niah_single_1")};
  const std::vector<int32_t> ids = writer().training_text(tasks, 4096, 3, 9);
  ASSERT_EQ(ids.size(), 3u * 4096);
  EXPECT_EQ(writer().training_text(tasks, 4096, 3, 9), ids);
  EXPECT_NE(writer().training_text(tasks, 4096, 3, 10), ids);
  const std::string text = text_of(ids);
  const int questions = count(text, "mentioned in the provided text is ");
  EXPECT_GT(questions, 3);
  int right = 0;  // answers are those of the needles
  for (size_t at = text.find("\nWhat is the special magic number for "); at != std::string::npos;
       at = text.find("\nWhat is the special magic number for ", at + 1)) {
    const size_t key_at = at + 38, key_end = text.find(" mentioned", key_at);
    const size_t answer_at = text.find("provided text is ", key_end) + 17;
    if (key_end == std::string::npos || answer_at + 7 > text.size()) break;  // cut off at the end
    right += count(text, " for " + text.substr(key_at, key_end - key_at) +
                             " is: " + text.substr(answer_at, 7)) == 1;
  }
  EXPECT_GE(right, questions - 3) << "at most the cut ones";
  EXPECT_THROW(writer().training_text(tasks, 100, 1, 1), Error);
}

TEST(Haystack, WordsOfTheFrameAreNoKeys) {
  const WordList words = WordList::built_in();
  EXPECT_GT(words.words.size(), 250u);
  const std::vector<std::string> frame = frame_words();
  for (const char* w : {"magic", "special", "number", "the"})
    EXPECT_NE(std::find(frame.begin(), frame.end(), w), frame.end());
  for (const std::string& w : words.words)
    EXPECT_EQ(std::find(frame.begin(), frame.end(), w), frame.end()) << w;
}

TEST(Haystack, KeysAndValuesHaveTheirForm) {
  Dice dice(1);
  const std::vector<std::string> words = {"a", "b"};
  for (int i = 0; i < 50; i++) {
    const std::string uuid = random_needle(NeedleKind::Uuid, words, dice);
    ASSERT_EQ(uuid.size(), 36u);
    for (const int dash : {8, 13, 18, 23}) EXPECT_EQ(uuid[dash], '-');
    EXPECT_EQ(uuid[14], '4');
    EXPECT_NE(std::string("89ab").find(uuid[19]), std::string::npos);
    EXPECT_EQ(random_needle(NeedleKind::Number, words, dice).size(), 7u);
    EXPECT_EQ(random_needle(NeedleKind::Word, words, dice)[1], '-');
  }
  EXPECT_EQ(question_text(NeedleKind::Word, {"x", "y", "z"}, 3),
            "\nWhat are all the special magic words for x, y, and z mentioned in the provided text? The "
            "special magic "
            "words for x, y, and z mentioned in the provided text are");
}

class HaystackFile : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const {
    return (std::filesystem::path(::testing::TempDir()) / ("kv2_haystack_" + name)).string();
  }
  void write(const std::string& name, const std::string& text) const {
    write_file_atomically(path(name), [&](std::FILE* f) { write_all(f, std::as_bytes(std::span(text))); });
  }
};

TEST_F(HaystackFile, ComesBackAsItWas) {
  HaystackSet set{.task = "any", .length = 5000, .seed = 3, .haystacks = {}};
  for (int i = 0; i < 2; i++) set.haystacks.push_back(writer().make(request("niah_multiquery", 5000), 3, i));
  write_haystacks(path("a.json"), {set, set});
  EXPECT_EQ(read_haystacks(path("a.json")), (std::vector<HaystackSet>{set, set}));
}

TEST_F(HaystackFile, WordsThatAreNoTextAreSaid) {
  std::string words;
  for (int i = 0; i < 200; i++) words += fmt::format("word{} ", i);
  write("words.txt", words + "\xfe");
  ::testing::internal::CaptureStderr();
  EXPECT_GE(WordList::read(path("words.txt")).words.size(), 200u);
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find(fmt::format("words.txt is not valid UTF-8, first at byte {}", words.size())),
            std::string::npos)
      << said;
}

TEST_F(HaystackFile, MayLeaveOutWhatIsNotNeeded) {
  write_npy_tokens(path("ids.npy"), std::vector<int32_t>{4, 5, 6});
  write("b.json", R"({"sets": [{"task": "t", "haystacks": [{"ids": "kv2_haystack_ids.npy", "questions":
                     [{"question": [7], "answer": [8, 9]}]}]}]})");
  const std::vector<HaystackSet> sets = read_haystacks(path("b.json"));
  ASSERT_EQ(sets.size(), 1u);
  EXPECT_EQ(sets[0].haystacks[0].ids, (std::vector<int32_t>{4, 5, 6}));
  EXPECT_EQ(sets[0].haystacks[0].questions[0].answer, (std::vector<int32_t>{8, 9}));
  EXPECT_EQ(sets[0].length, 6);
}

TEST_F(HaystackFile, WrongOnesAreRefusedWithTheirPlace) {
  const auto refusal = [&](const std::string& text) {
    write("c.json", text);
    try {
      read_haystacks(path("c.json"));
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::BadFile) << e.what();
      return std::string(e.what());
    }
    ADD_FAILURE() << text;
    return std::string();
  };
  EXPECT_NE(refusal("{\"sets\": [").find("no JSON"), std::string::npos);
  EXPECT_NE(refusal("[]").find("object"), std::string::npos);
  EXPECT_NE(refusal(R"({"sets": []})").find("at least one set"), std::string::npos);
  EXPECT_NE(refusal(R"({"haystacks": []})").find("there are sets"), std::string::npos);
  EXPECT_NE(refusal(R"({"sets": [{"task": "t", "haystacks": []}]})").find("sets[0]"), std::string::npos);
  const std::string start = R"({"sets": [{"task": "t", "haystacks": [{"ids": )";
  EXPECT_NE(refusal(start + R"([1, "x"], "questions": []}]}]})").find("haystacks[0].ids[1]"),
            std::string::npos);
  EXPECT_NE(refusal(start + R"([-1], "questions": []}]}]})").find("-1"), std::string::npos);
  EXPECT_NE(refusal(start + R"([], "questions": []}]}]})").find("ids"), std::string::npos);
  EXPECT_NE(refusal(start + R"([1], "questions": [{"question": [1]}]}]}]})").find("'answer' is missing"),
            std::string::npos);
  EXPECT_NE(refusal(start + R"([1], "questions": [{"query": [1]}]}]}]})").find("'query'"), std::string::npos);
}

}  // namespace
}  // namespace kv2
