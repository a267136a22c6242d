// SPDX-License-Identifier: Apache-2.0
// Whether this program runs under a sanitizer, which has an allocator of its own and takes up to fifteen
// times as long.
#pragma once

namespace kv2::test {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace kv2::test
