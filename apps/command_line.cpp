// SPDX-License-Identifier: Apache-2.0
#include "apps/command_line.h"

namespace kv2::app {
namespace {

std::string remembered_command;

}  // namespace

void remember_command(int argc, char** argv) {
  remembered_command = "kv2";
  for (int i = 1; i < argc; i++) remembered_command += " " + shell_quoted(argv[i]);
}

const std::string& command_line() {
  return remembered_command;
}

std::string shell_quoted(const std::string& word) {
  constexpr const char* kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./=:,+@%";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string out = "'";
  for (const char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

}  // namespace kv2::app
