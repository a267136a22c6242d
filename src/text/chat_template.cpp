// SPDX-License-Identifier: Apache-2.0
#include "text/chat_template.h"

#include "text/utf8.h"

namespace kv2 {
namespace {

constexpr std::string_view kStart = "<|im_start|>", kEnd = "<|im_end|>";
constexpr std::string_view kLlamaDates = "Cutting Knowledge Date: ";

bool contains(std::string_view text, std::string_view what) {
  return text.find(what) != std::string_view::npos;
}

/// A Jinja string literal's content as text.
std::string unescape(std::string_view literal) {
  std::string out;
  for (size_t i = 0; i < literal.size(); i++) {
    if (literal[i] != '\\' || i + 1 == literal.size()) {
      out += literal[i];
      continue;
    }
    switch (const char c = literal[++i]) {
      case 'n':
        out += '\n';
        break;
      case 't':
        out += '\t';
        break;
      case 'r':
        out += '\r';
        break;
      case '\\':
      case '\'':
      case '"':
        out += c;
        break;
      default:
        (out += '\\') += c;
    }
  }
  return out;
}

/// The literal text between "<|im_start|>system\n" and "<|im_end|>", in a string of the template or outside
/// all expressions; "" where a variable stands between them.
std::string literal_system_message(std::string_view jinja) {
  constexpr std::string_view kSystem = "<|im_start|>system";
  for (size_t at = jinja.find(kSystem); at != std::string_view::npos; at = jinja.find(kSystem, at + 1)) {
    const char before = at > 0 ? jinja[at - 1] : '\0';
    const bool in_string = before == '\'' || before == '"';
    std::string_view rest = jinja.substr(at + kSystem.size());
    const size_t newline = rest.starts_with("\n") ? 1 : in_string && rest.starts_with("\\n") ? 2 : 0;
    if (newline == 0) continue;
    rest.remove_prefix(newline);
    const std::string_view message = rest.substr(0, rest.find(kEnd));
    if (message.size() == rest.size() || message.empty()) continue;
    if (!in_string && !contains(message, "{{") && !contains(message, "{%")) return std::string(message);
    bool ends = false;  // the string itself ends before the message does
    for (size_t i = 0; i < message.size() && !ends; i++) {
      ends = message[i] == before;
      if (message[i] == '\\') i++;
    }
    if (in_string && !ends) return unescape(message);
  }
  return {};
}

/// What Llama 3.1 and later put in front of every system message; "" for Llama 3.
std::string llama_dates(std::string_view jinja) {
  const auto quoted_after = [&](std::string_view mark) {
    const size_t at = jinja.find(mark);
    if (at == std::string_view::npos) return std::string();
    const std::string_view rest = jinja.substr(at + mark.size());
    return unescape(rest.substr(0, rest.find('"')));
  };
  const std::string knowledge = quoted_after("\"Cutting Knowledge Date: ");
  const std::string today = quoted_after("set date_string = \"");
  if (knowledge.empty() || today.empty()) return {};
  return std::string(kLlamaDates) + knowledge + "Today Date: " + today + "\n\n";
}

/// str.strip() of Python, which is Jinja's filter `trim`.
std::string_view trim(std::string_view text) {
  const auto strips = [](char32_t c) { return is_white_space(c) || (c >= 0x1C && c <= 0x1F); };
  const auto leading = [&](std::string_view s) -> size_t {
    const Utf8Step step = utf8_step(s);
    return step.status == Utf8Status::Valid && strips(utf8_decode(s.substr(0, step.length))) ? step.length
                                                                                             : 0;
  };
  size_t end = 0;  // behind the last character that stays
  for (size_t n; !text.empty() && (n = leading(text)) > 0;) text.remove_prefix(n);
  for (size_t i = 0; i < text.size();) {
    const size_t n = leading(text.substr(i));
    i += n > 0 ? n : utf8_step(text.substr(i)).length;
    if (n == 0) end = i;
  }
  return text.substr(0, end);
}

std::string turn(ChatFormat format, const ChatMessage& message) {
  if (format == ChatFormat::ChatMl)
    return std::string(kStart) + message.role + "\n" + message.content + std::string(kEnd) + "\n";
  std::string_view content = message.content, dates;
  if (message.role == "system" && content.starts_with(kLlamaDates) && contains(content, "\n\n"))
    dates = content.substr(0, content.find("\n\n") + 2);  // the template's own text is not trimmed
  content.remove_prefix(dates.size());
  return "<|start_header_id|>" + message.role + "<|end_header_id|>\n\n" + std::string(dates) +
         std::string(trim(content)) + "<|eot_id|>";
}

std::string turns(ChatFormat format, const std::vector<ChatMessage>& messages) {
  std::string out;
  for (const ChatMessage& m : messages) out += turn(format, m);
  return out + (format == ChatFormat::ChatMl ? "<|im_start|>assistant\n"
                                             : "<|start_header_id|>assistant<|end_header_id|>\n\n");
}

}  // namespace

std::optional<ChatFormat> recognise_chat_template(std::string_view jinja) {
  const bool llama = contains(jinja, "<|start_header_id|>") && contains(jinja, "<|end_header_id|>") &&
                     contains(jinja, "<|eot_id|>");
  // Phi 4 ends the role with <|im_sep|> instead of a line break
  const bool chat_ml = contains(jinja, kStart) && contains(jinja, kEnd) && !contains(jinja, "<|im_sep|>");
  if (llama == chat_ml) return std::nullopt;
  return llama ? ChatFormat::Llama3 : ChatFormat::ChatMl;
}

const char* name_of(ChatFormat format) {
  return format == ChatFormat::ChatMl ? "ChatML" : "Llama 3";
}

std::string system_message_for(std::string_view jinja, std::string_view own) {
  const std::optional<ChatFormat> format = recognise_chat_template(jinja);
  if (format == ChatFormat::Llama3) return llama_dates(jinja) + std::string(trim(own));
  if (format && own.empty()) return literal_system_message(jinja);
  return std::string(own);
}

std::string default_system_message(std::string_view jinja) {
  return system_message_for(jinja, {});
}

std::string apply_chat_template(ChatFormat format, const std::vector<ChatMessage>& messages) {
  return (format == ChatFormat::Llama3 ? "<|begin_of_text|>" : "") + turns(format, messages);
}

std::string continue_chat(ChatFormat format, const std::vector<ChatMessage>& messages) {
  return std::string(end_of_turn(format)) + (format == ChatFormat::ChatMl ? "\n" : "") +
         turns(format, messages);
}

const char* end_of_turn(ChatFormat format) {
  return format == ChatFormat::ChatMl ? "<|im_end|>" : "<|eot_id|>";
}

}  // namespace kv2
