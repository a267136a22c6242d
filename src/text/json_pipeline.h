// SPDX-License-Identifier: Apache-2.0
// Reads normalizer, pre_tokenizer and post_processor of a tokenizer.json into a recipe that has its tokens
// already.
#pragma once

#include "text/json_access.h"
#include "text/recipe.h"

namespace kv2 {

/// Errors: Unsupported naming the step and what is supported; BadFile.
void read_pipeline(json::object root, TokenizerRecipe& recipe);

}  // namespace kv2
