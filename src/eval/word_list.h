// SPDX-License-Identifier: Apache-2.0
// WordList: the words that keys, values and made-up essays consist of.
#pragma once

#include <string>
#include <vector>

namespace kv2 {

struct WordList {
  std::vector<std::string> words;  // sorted, each once, without the words of the tasks' own sentences
  std::string source;              // for people: where they come from

  /// Words of a file, separated by white space; lines that begin with # are comments. Errors: Io; BadArgument
  /// with fewer than 100 different words.
  static WordList read(const std::string& path);
  /// Some 300 common English words.
  static WordList built_in();
  /// `path` where it is given; words.txt in the model's folder where there is one (needle-15m knows its own
  /// words best); else the built-in list.
  static WordList choose(const std::string& path, const std::string& model);
};

}  // namespace kv2
