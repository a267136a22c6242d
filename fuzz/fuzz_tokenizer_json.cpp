// SPDX-License-Identifier: Apache-2.0
// tokenizer.json: read it; where it is accepted, encode the file's own bytes, take them back and stream them.
#include <string>
#include <vector>

#include "base/check.h"
#include "fuzz.h"
#include "text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kv2;
  const std::string_view json(reinterpret_cast<const char*>(data), size);
  fuzz::expect_error_at_most([&] {
    const auto tokenizer = Tokenizer::from_json(json, json);
    // a pattern may take a million steps a match: few bytes keep an input fast
    for (const std::string_view text : {json.substr(0, 48), json.substr(size - std::min<size_t>(size, 48))}) {
      const std::vector<int32_t> ids =
          tokenizer->encode(text, Tokenizer::Special::Parse, Tokenizer::Bos::AsModelSays);
      const std::string all = tokenizer->decode(ids, Tokenizer::Special::Parse);
      Detokenizer stream(*tokenizer);
      size_t streamed = 0;
      for (const int32_t id : ids) {
        KV2_CHECK(id >= 0 && id < tokenizer->n_tokens());
        streamed += stream.push(id).size();
      }
      streamed += stream.finish().size();
      KV2_CHECK(streamed >= all.size(), "{} bytes streamed of {}", streamed,
                all.size());  // U+FFFD has three bytes
    }
  });
  return 0;
}
