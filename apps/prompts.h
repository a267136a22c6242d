// SPDX-License-Identifier: Apache-2.0
// Prompts of a file or pieces of a text, as token ids.
#pragma once

#include <string>
#include <vector>

#include "apps/options.h"

namespace kv2::app {

struct PromptSource {
  std::string file;  // lines of text, or a JSON array of strings or of arrays of token ids
  std::vector<std::string> texts, tokens;  // else: pieces of text files and .npy files, from each in turn
  int pieces = 16;
  int64_t piece_tokens = 256;

  void add_to(CLI::App& app);
  /// Errors: BadArgument (nothing given, no prompt in the file, a text shorter than a piece), BadFile (JSON
  /// of another shape), Unsupported (text without a tokenizer), Io.
  std::vector<std::vector<int32_t>> read(const Session& session) const;

 private:
  std::vector<std::vector<int32_t>> cut(const Session& session, const std::vector<int32_t>& all,
                                        int64_t n) const;
};

}  // namespace kv2::app
