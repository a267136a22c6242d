// SPDX-License-Identifier: Apache-2.0
// The one exception type of kv2. It means "the world is wrong" (a file, a model, a device, an argument); what
// is expected in normal operation (no free page) is a return value instead, and a bug is Error{Bug} from
// KV2_CHECK.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace kv2 {

enum class ErrorCode {
  BadArgument,  // the caller asked for something impossible; exit code 2 in the program
  BadFile,      // a file is truncated, corrupted or not what it claims to be
  Unsupported,  // valid, but not supported here; the message lists what is
  Mismatch,     // two valid things that do not belong together (a calibration of another model)
  OutOfMemory,  // the plan does not fit; the message says what would
  Io,           // the operating system refused
  Interrupted,  // the user pressed Ctrl-C
  Bug,          // a broken invariant of kv2 itself
};

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const noexcept { return code_; }

  /// The same error with one phrase of context in front: Error("shape ...").in("layer 3") -> "layer 3: shape
  /// ...".
  Error in(std::string_view context) const { return Error(code_, std::string(context) + ": " + what()); }

 private:
  ErrorCode code_;
};

}  // namespace kv2
