// SPDX-License-Identifier: Apache-2.0
// RetrievalTask: which needles lie in which haystack and what is asked of them. The rows are the NIAH tasks
// of RULER (arXiv 2404.06654); every field can be changed by name, as with --kv:
//   niah_multikey_3                                     a row of the table
//   multi-key:haystack=needles,keys=uuid,values=uuid    the same, spelled out
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kv2 {

enum class TaskShape : uint8_t {
  Single,      // one needle, asked for
  MultiKey,    // many needles, one asked for at a time
  MultiValue,  // each key has several values; all of them are asked for
  MultiQuery,  // several keys are asked for in one question
};
/// What lies between the needles: 14 fixed sentences in random order; sentences of a text (or of random words
/// in fixed patterns); nothing but needles.
enum class HaystackKind : uint8_t { Noise, Essay, Needles };
/// What keys and values are made of: two words with a hyphen, 7 digits, or a random UUID.
enum class NeedleKind : uint8_t { Word, Number, Uuid };

struct RetrievalTask {
  TaskShape shape = TaskShape::Single;
  HaystackKind haystack = HaystackKind::Noise;
  NeedleKind keys = NeedleKind::Word, values = NeedleKind::Number;
  /// Keys in the text; 0: as many as fit (haystack=needles only, and the only choice there).
  int n_keys = 1;
  int n_values = 1;   // of each key
  int n_queries = 1;  // keys of one question
  bool operator==(const RetrievalTask&) const = default;

  /// Errors: BadArgument for an unknown task, parameter, haystack or kind (lists those there are) and for
  /// numbers that do not go together.
  static RetrievalTask parse(std::string_view text);
  /// Canonical: the shape with every field that differs from its row; parse(text()) == *this.
  std::string text() const;
};

struct RetrievalTaskInfo {
  std::string name, description;
};
/// The names that parse() knows, in table order: the four shapes, then RULER's eight.
const std::vector<RetrievalTaskInfo>& retrieval_tasks();
/// What tasks_named takes besides: RULER's eight.
inline constexpr std::string_view kAllOfRuler = "ruler";
/// The task of a text, or RULER's eight for "ruler". Errors: parse's, with "ruler" among what there is.
std::vector<RetrievalTask> tasks_named(std::string_view text);

}  // namespace kv2
