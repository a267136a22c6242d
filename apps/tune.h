// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>

namespace kv2::app {

void add_tune(CLI::App& program);

}  // namespace kv2::app
