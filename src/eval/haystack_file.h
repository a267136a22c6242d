// SPDX-License-Identifier: Apache-2.0
// Haystacks as a file, so that another program can make them or check the same ones. JSON:
//   {"sets": [{"task": "any name", "length": 4096, "seed": 0, "haystacks": [
//     {"ids": [5, 17, …], "n_needles": 4, "questions": [
//       {"question": [8, 9], "answer": [3, 4], "values": ["7964129"], "depth": 0.25}, …]}, …]}, …]}
// "ids" may be a string instead: a .npy file of integers, its path beside this file. Ids are tokens of the
// model; the answer follows the question directly. length, seed, n_needles, values and depth may be left out:
// without values there is no substring score. Other keys are errors.
#pragma once

#include <string>
#include <vector>

#include "eval/haystack.h"

namespace kv2 {

/// Errors: Io; BadFile naming the place in the file, what was found and what is expected.
std::vector<HaystackSet> read_haystacks(const std::string& path);
/// Atomically. Errors: Io.
void write_haystacks(const std::string& path, const std::vector<HaystackSet>& sets);

}  // namespace kv2
