// SPDX-License-Identifier: Apache-2.0
// The sentences of the retrieval tasks as text: needles, questions, answers, and what lies between. The frame
// is that of RULER's NIAH tasks, as needle-15m's README writes it. No tokens here.
#pragma once

#include <string>
#include <vector>

#include "eval/dice.h"
#include "eval/retrieval_task.h"

namespace kv2 {

/// "Some special magic numbers are hidden …\n"
std::string preamble_text(NeedleKind values);
/// " One of the special magic numbers for KEY is: VALUE."
std::string needle_text(NeedleKind values, const std::string& key, const std::string& value);
/// "\nWhat is the special magic number for KEY mentioned in the provided text? The special magic number for
/// KEY mentioned in the provided text is", in the plural where several values are expected. Ends without a
/// space.
std::string question_text(NeedleKind values, const std::vector<std::string>& keys, size_t n_values);
/// " A, B, C."
std::string answer_text(const std::vector<std::string>& values);

/// A random key or value.
std::string random_needle(NeedleKind kind, const std::vector<std::string>& words, Dice& dice);
/// The fixed sentences of a noise haystack; each begins with a space.
const std::vector<std::string>& noise_sentences();
/// A sentence of random words in one of nine patterns; begins with a space.
std::string essay_sentence(const std::vector<std::string>& words, Dice& dice);
/// A text cut into sentences: each begins with a space and keeps its final mark; runs of white space are one
/// space. Errors: BadArgument for fewer than 20 sentences.
std::vector<std::string> sentences_of(const std::string& text, const std::string& name);

/// Words of all of the above frames (not of noise), each once.
std::vector<std::string> frame_words();

}  // namespace kv2
