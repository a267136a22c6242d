// SPDX-License-Identifier: Apache-2.0
// The parameters of methods in a method's text: names, allowed values, how they are read and printed. What is
// printed reads back to the same value. The table of methods itself is methods.cpp.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "kv2/cache.h"

namespace kv2 {

struct Parameter {
  enum class Of : uint8_t {
    AllCodes,
    AffineCodes,  // of both sides
    AffineKeys,
    AffineValues,
    ChannelKeys,
    GaussCodes,
    RoundedCodes,
    Uncalibrated,
    Calibrated,
    Feedback
  };

  const char* name;
  const char* allowed;
  Of methods;
  bool (*read)(std::string_view text, Method& method);
  std::string (*text)(const Method& method);  // nullptr: a shorthand, never printed
};

std::span<const Parameter> method_parameters();
bool takes(const Method& method, const Parameter& parameter);
/// One "key=value" of a method text. Errors: BadArgument, listing what the method takes or the value allows.
const Parameter& read_parameter(std::string_view item, Method& method);

/// Throws BadArgument unless the values of coder `feedback` are in range and nothing is asked for that would
/// have no effect.
void validate_coder(const Method& method);

}  // namespace kv2
