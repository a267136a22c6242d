// SPDX-License-Identifier: Apache-2.0
// Expectations that several tests of this folder share.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>

#include "kv2/error.h"

namespace kv2::testing {

using Parts = std::initializer_list<std::string_view>;

/// `action` throws kv2::Error with this code, in one line that holds every one of `parts`.
/// Not a template: hundreds of instantiations took a minute to compile under the sanitizers.
inline void expect_error(ErrorCode code, Parts parts, const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& e) {
    EXPECT_EQ(static_cast<int>(e.code()), static_cast<int>(code)) << e.what();
    const std::string text = e.what();
    for (const std::string_view part : parts)
      EXPECT_NE(text.find(part), text.npos) << "no \"" << part << "\" in: " << text;
    EXPECT_EQ(text.find('\n'), text.npos) << text;
    EXPECT_LT(text.size(), 600u) << text;
    return;
  }
  ADD_FAILURE() << "no error; expected one with \"" << (parts.size() == 0 ? "" : *parts.begin()) << '"';
}

}  // namespace kv2::testing
