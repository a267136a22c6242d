// SPDX-License-Identifier: Apache-2.0
// The inside view of Engine (kv2/engine.h declares it): the types it stands on, and what a model file says of
// text.
#pragma once

#include <memory>
#include <string>

#include "cache/kv_cache.h"
#include "engine/sampler.h"
#include "kv2/calibrate.h"
#include "kv2/engine.h"
#include "model/model.h"
#include "text/tokenizer.h"

namespace kv2 {

/// The tokenizer of a model file (GGUF metadata, or tokenizer.json beside config.json); nullptr with a reason
/// in `why_not` when the model has none that is supported.
std::unique_ptr<Tokenizer> load_tokenizer(const TensorFile& file, std::string* why_not);
/// The chat template text of the model's metadata, "" when there is none.
std::string load_chat_template(const TensorFile& file);

}  // namespace kv2
