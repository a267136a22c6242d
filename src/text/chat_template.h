// SPDX-License-Identifier: Apache-2.0
// Chat templates that `run` knows, recognised in the model's metadata. No template language is interpreted:
// tools, documents and thinking switches of a template are left out. The texts spell every special token, the
// begin-of-text token of Llama 3 included: encode them with Special::Parse (encode() adds no second
// begin-of-text token).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kv2 {

struct ChatMessage {
  std::string role;  // "system", "user", "assistant"
  std::string content;
};

enum class ChatFormat { ChatMl, Llama3 };

/// Which format a Jinja template text (tokenizer.chat_template, chat_template.jinja) is; nullopt for any
/// other.
std::optional<ChatFormat> recognise_chat_template(std::string_view jinja);
const char* name_of(ChatFormat format);

/// The system message as the template writes it: what it puts in front of every system message (Llama 3.1's
/// dates) and `own`, or, where `own` is empty, the message that the template itself inserts ("" when it
/// inserts none: then there is no system turn), so that a chat reads exactly as the model was trained to see
/// it. A template that asks for today's date gets the date it names for when there is no clock, so that a run
/// repeats.
std::string system_message_for(std::string_view jinja, std::string_view own);
/// system_message_for(jinja, "").
std::string default_system_message(std::string_view jinja);

/// The prompt of a conversation, ending where the assistant is to speak.
std::string apply_chat_template(ChatFormat format, const std::vector<ChatMessage>& messages);
/// What follows the assistant's words when the conversation goes on with `messages` (end mark, then the new
/// turns).
std::string continue_chat(ChatFormat format, const std::vector<ChatMessage>& messages);
/// The token text that ends the assistant's turn: "<|im_end|>" or "<|eot_id|>".
const char* end_of_turn(ChatFormat format);

}  // namespace kv2
