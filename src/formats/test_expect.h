// SPDX-License-Identifier: Apache-2.0
// Expectations that several tests of this folder share.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kv2/error.h"

namespace kv2::testing {

/// `action` throws kv2::Error with this code, in one line that holds every one of `parts`.
template <class F>
void expect_error(ErrorCode code, const std::vector<std::string>& parts, F&& action) {
  try {
    action();
  } catch (const Error& e) {
    EXPECT_EQ(static_cast<int>(e.code()), static_cast<int>(code)) << e.what();
    const std::string text = e.what();
    for (const std::string& part : parts)
      EXPECT_NE(text.find(part), text.npos) << "no \"" << part << "\" in: " << text;
    EXPECT_EQ(text.find('\n'), text.npos) << text;
    EXPECT_LT(text.size(), 600u) << text;
    return;
  }
  ADD_FAILURE() << "no error; expected one with \"" << (parts.empty() ? "" : parts[0]) << '"';
}

}  // namespace kv2::testing
