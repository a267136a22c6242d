// SPDX-License-Identifier: Apache-2.0
// The command as the user gave it, for records of what was run.
#pragma once

#include <string>

namespace kv2::app {

/// Once, by main.
void remember_command(int argc, char** argv);
const std::string& command_line();
/// A word as a shell reads it back.
std::string shell_quoted(const std::string& word);

}  // namespace kv2::app
