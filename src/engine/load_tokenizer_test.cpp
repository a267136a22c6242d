// SPDX-License-Identifier: Apache-2.0
// Tokenizers and chat templates out of model files written here; ids of real vocabularies are compared in
// tests/tokenizer_golden_test.cpp.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "base/file.h"
#include "engine/engine.h"
#include "formats/gguf.h"
#include "formats/safetensors.h"
#include "formats/test_writer.h"
#include "text/byte_alphabet.h"

namespace kv2 {
namespace {

using Ids = std::vector<int32_t>;
using testing::GgufWriter;
using testing::le;
using Special = Tokenizer::Special;
using Bos = Tokenizer::Bos;

std::vector<std::string> byte_tokens(const std::vector<std::string>& more) {
  std::vector<std::string> tokens(byte_alphabet().begin(), byte_alphabet().end());
  tokens.insert(tokens.end(), more.begin(), more.end());
  return tokens;
}

std::string int32s(const std::vector<int32_t>& x) {
  std::string out;
  for (const int32_t v : x) out += le(v);
  return out;
}

struct Gguf {
  std::string bytes;
  std::unique_ptr<GgufFile> file;
  explicit Gguf(const GgufWriter& writer)
      : bytes(writer.bytes()), file(GgufFile::parse(testing::as_bytes(bytes), "test.gguf")) {}
};

GgufWriter bpe(const std::string& pre) {
  std::vector<int32_t> types(258, 1);
  types[257] = 3;
  GgufWriter w;
  w.string("tokenizer.ggml.model", "gpt2").string("tokenizer.ggml.pre", pre);
  w.strings("tokenizer.ggml.tokens", byte_tokens({"ab", "<eot>"})).strings("tokenizer.ggml.merges", {"a b"});
  w.array("tokenizer.ggml.token_type", 5, types.size(), int32s(types));
  w.u32("tokenizer.ggml.bos_token_id", 257).u32("tokenizer.ggml.eos_token_id", 257);
  return w;
}

TEST(LoadTokenizer, ByteLevelBpeOfGguf) {
  std::string why;
  const Gguf llama(bpe("llama-bpe"));
  auto tokenizer = load_tokenizer(*llama.file, &why);
  ASSERT_NE(tokenizer, nullptr) << why;
  EXPECT_EQ(tokenizer->encode("abc<eot>", Special::Parse, Bos::AsModelSays),
            (Ids{257, 256, 'c', 257}));  // bos by default
  const Gguf silent(bpe("llama-bpe").boolean("tokenizer.ggml.add_bos_token", false));
  EXPECT_EQ(load_tokenizer(*silent.file, &why)->encode("ab", Special::Parse, Bos::AsModelSays), (Ids{256}));
  const Gguf gpt2(bpe("gpt-2"));
  EXPECT_EQ(load_tokenizer(*gpt2.file, &why)->encode("ab", Special::Parse, Bos::AsModelSays), (Ids{256}));
}

TEST(LoadTokenizer, SentencePieceOfGguf) {
  GgufWriter w;
  w.string("tokenizer.ggml.model", "llama").string("tokenizer.ggml.pre", "default");
  w.strings("tokenizer.ggml.tokens", {"<unk>", "<s>", "a", "▁", "▁a"});
  w.array("tokenizer.ggml.scores", 6, 5, le(0.0f) + le(0.0f) + le(-1.5f) + le(-2.5f) + le(-0.5f));
  w.array("tokenizer.ggml.token_type", 5, 5, int32s({2, 3, 1, 1, 1}));
  w.u32("tokenizer.ggml.bos_token_id", 1).u32("tokenizer.ggml.unknown_token_id", 0);
  std::string why;
  const Gguf file(w);
  auto tokenizer = load_tokenizer(*file.file, &why);
  ASSERT_NE(tokenizer, nullptr) << why;
  EXPECT_EQ(tokenizer->encode("a xa", Special::Parse, Bos::AsModelSays), (Ids{1, 4, 3, 0, 2}));
  const Gguf bare(w.boolean("tokenizer.ggml.add_space_prefix", false));
  EXPECT_EQ(load_tokenizer(*bare.file, &why)->encode("a a", Special::Parse, Bos::Never), (Ids{2, 4}));
}

TEST(LoadTokenizer, WhyNot) {
  const auto refused = [](const GgufWriter& w, const std::string& words) {
    std::string why;
    const Gguf file(w);
    EXPECT_EQ(load_tokenizer(*file.file, &why), nullptr) << words;
    EXPECT_NE(why.find(words), std::string::npos) << why;
    EXPECT_EQ(load_tokenizer(*file.file, nullptr), nullptr);
  };
  refused(GgufWriter(), "no tokenizer");
  refused(GgufWriter().string("tokenizer.ggml.model", "bert"), "\"bert\" is not supported");
  refused(GgufWriter().u32("tokenizer.ggml.model", 1), "tokenizer.ggml.model");
  refused(GgufWriter().string("tokenizer.ggml.model", "gpt2"), "vocabulary is empty");
  refused(GgufWriter().string("tokenizer.ggml.model", "llama").strings("tokenizer.ggml.tokens", {"a"}),
          "with 0 scores");
  refused(bpe("default"), "pre-tokenizer");
  refused(GgufWriter()
              .string("tokenizer.ggml.model", "gpt2")
              .string("tokenizer.ggml.pre", "gpt-2")
              .strings("tokenizer.ggml.tokens", {"a"}),
          "without merges");
  GgufWriter types;
  types.string("tokenizer.ggml.model", "gpt2").array("tokenizer.ggml.token_type", 5, 1, int32s({9}));
  refused(types, "type 9");
  GgufWriter bos;
  bos.string("tokenizer.ggml.model", "gpt2").key("tokenizer.ggml.bos_token_id", 5, le<int32_t>(-7));
  refused(bos, "no token id");
}

class HfDirectoryWithTokenizer : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = std::filesystem::temp_directory_path() / ("kv2_load_tokenizer_" + std::to_string(::getpid()));
    std::filesystem::create_directories(path_);
    write("config.json", R"({"model_type":"qwen3"})");
    const float x = 1;
    const SafetensorsTensor t{"x", DType::F32, {1}, std::as_bytes(std::span(&x, 1))};
    write_safetensors((path_ / "model.safetensors").string(), {}, std::span(&t, 1));
  }
  void TearDown() override { std::filesystem::remove_all(path_); }
  void write(const char* name, const std::string& text) const {
    write_file_atomically((path_ / name).string(),
                          [&](std::FILE* f) { write_all(f, std::as_bytes(std::span(text))); });
  }
  std::filesystem::path path_;
};

TEST_F(HfDirectoryWithTokenizer, TokenizerAndTemplates) {
  std::string why;
  EXPECT_EQ(load_tokenizer(*HfDirectory::open(path_.string()), &why), nullptr);
  EXPECT_NE(why.find("tokenizer.json"), std::string::npos) << why;
  EXPECT_EQ(load_chat_template(*HfDirectory::open(path_.string())), "");
  write(
      "tokenizer.json",
      R"({"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false},"added_tokens":[{"id":3,"content":"<e>","special":true}],
    "model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]}})");
  write("tokenizer_config.json", R"({"eos_token":"<e>","chat_template":"inline"})");
  const auto directory = HfDirectory::open(path_.string());
  const auto tokenizer = load_tokenizer(*directory, &why);
  ASSERT_NE(tokenizer, nullptr) << why;
  EXPECT_EQ(tokenizer->encode("aba<e>", Special::Parse, Bos::AsModelSays), (Ids{2, 0, 3}));
  EXPECT_EQ(tokenizer->eos(), 3);
  EXPECT_EQ(load_chat_template(*directory), "inline");
  write("tokenizer_config.json",
        R"({"chat_template":[{"name":"tool_use","template":"t"},{"name":"default","template":"d"}]})");
  EXPECT_EQ(load_chat_template(*directory), "d");
  write("chat_template.jinja", "from the file");
  EXPECT_EQ(load_chat_template(*directory), "from the file");
  for (const char* config :
       {"[1", "[]", R"({"chat_template":7})", R"({"chat_template":[1,{"name":"x"}]})", ""}) {
    std::filesystem::remove(path_ / "chat_template.jinja");
    write("tokenizer_config.json", config);
    EXPECT_EQ(load_chat_template(*directory), "");
  }
}

}  // namespace
}  // namespace kv2
