// SPDX-License-Identifier: Apache-2.0
// kv2 inspect FILE: what is in a model or calibration file, recognised by its content.
#include "formats/inspect.h"

#include <fmt/format.h>

#include "apps/options.h"

namespace kv2::app {

void add_inspect(CLI::App& program) {
  struct Options {
    std::string path;
    bool json = false;
  };
  auto* app = program.add_subcommand("inspect", "describe a GGUF, safetensors or calibration file");
  auto o = std::make_shared<Options>();
  app->add_option("file", o->path, "the file or directory")->required();
  app->add_flag("--json", o->json, "one JSON object");
  app->callback([o] { fmt::print("{}\n", inspect_file(o->path, o->json)); });
}

}  // namespace kv2::app
