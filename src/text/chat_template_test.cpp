// SPDX-License-Identifier: Apache-2.0
// Recognition, and system messages of unusual templates. Whole chats of real templates:
// tests/tokenizer_golden_test.cpp.
#include "text/chat_template.h"

#include <gtest/gtest.h>

namespace kv2 {
namespace {

constexpr const char* kChatMl = "{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}";
constexpr const char* kLlama3 =
    "{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' + m.content | trim + '<|eot_id|>' }}";

TEST(ChatTemplate, OnlyTheTwoFormatsAreRecognised) {
  EXPECT_EQ(recognise_chat_template(kChatMl), ChatFormat::ChatMl);
  EXPECT_EQ(recognise_chat_template(kLlama3), ChatFormat::Llama3);
  EXPECT_EQ(recognise_chat_template(""), std::nullopt);
  EXPECT_EQ(recognise_chat_template("[INST] {{ m.content }} [/INST]"), std::nullopt);
  EXPECT_EQ(recognise_chat_template("<|im_start|>user<|im_sep|>{{ m.content }}<|im_end|>"), std::nullopt);
  EXPECT_EQ(recognise_chat_template(std::string(kChatMl) + kLlama3), std::nullopt);
  EXPECT_STREQ(name_of(ChatFormat::ChatMl), "ChatML");
  EXPECT_STREQ(end_of_turn(ChatFormat::Llama3), "<|eot_id|>");
}

TEST(ChatTemplate, DefaultSystemMessages) {
  const auto of = [](const std::string& start) { return default_system_message(start + kChatMl); };
  EXPECT_EQ(of(""), "");
  EXPECT_EQ(of(R"({{ '<|im_start|>system\nYou are X.<|im_end|>\n' }})"), "You are X.");
  EXPECT_EQ(of("{{ '<|im_start|>system\nYou are X.<|im_end|>\n' }}"), "You are X.");
  EXPECT_EQ(of(R"({{ "<|im_start|>system\nIt's \"X\".\n\tY<|im_end|>\n" }})"), "It's \"X\".\n\tY");
  EXPECT_EQ(of("<|im_start|>system\nPlain text<|im_end|>\n"), "Plain text");
  EXPECT_EQ(of("<|im_start|>system\n{{ system }}<|im_end|>\n"), "");
  // the message of a variable between two strings is none; the literal one further on counts
  EXPECT_EQ(of(R"({{ '<|im_start|>system\n' + s + '<|im_end|>' }}{{ '<|im_start|>system\nD<|im_end|>' }})"),
            "D");
  EXPECT_EQ(of("{{ '<|im_start|>system"), "");
  EXPECT_EQ(of("<|im_start|>system\n"), "");
  EXPECT_EQ(system_message_for(kChatMl, "mine"), "mine");
  EXPECT_EQ(default_system_message(kLlama3), "");
  EXPECT_EQ(default_system_message("no format: <|im_start|>system\nX"), "");
}

TEST(ChatTemplate, Llama3TrimsAsPythonDoes) {
  EXPECT_EQ(apply_chat_template(ChatFormat::Llama3, {{"user", " \u3000\x1c\t a b \n\u2028"}}),
            "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\na "
            "b<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n");
  EXPECT_EQ(apply_chat_template(ChatFormat::Llama3, {{"user", " \xff "}}),
            "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n\xff<|eot_id|><|start_header_id|>"
            "assistant<|end_header_id|>\n\n");
  EXPECT_EQ(continue_chat(ChatFormat::Llama3, {{"user", "x"}}),
            "<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nx<|eot_id|><|start_header_id|>assistant<|"
            "end_header_id|>\n\n");
  EXPECT_EQ(continue_chat(ChatFormat::ChatMl, {{"user", " x "}}),
            "<|im_end|>\n<|im_start|>user\n x <|im_end|>\n<|im_start|>assistant\n");
}

}  // namespace
}  // namespace kv2
