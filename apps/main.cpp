// SPDX-License-Identifier: Apache-2.0
// The program kv2: subcommands, and the one place where errors become exit codes: 0 done, 1 failed, 2 wrong
// usage. stdout is data, stderr is everything else.
#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <iostream>

#include "apps/command_line.h"
#include "apps/options.h"
#include "apps/tune.h"
#include "base/log.h"
#include "kv2/error.h"

namespace {

int exit_code(kv2::ErrorCode code) {
  switch (code) {
    case kv2::ErrorCode::BadArgument:
      return 2;
    case kv2::ErrorCode::Interrupted:
      return 130;
    default:
      return 1;
  }
}

/// The parser alone would say that a subcommand is missing, not that this one does not exist.
void require_known_command(const CLI::App& program, int argc, char** argv) {
  if (argc < 2 || argv[1][0] == '-') return;
  std::string known;
  for (const CLI::App* command : program.get_subcommands([](const CLI::App*) { return true; })) {
    if (command->get_name() == argv[1])
      return command->get_require_subcommand_min() > 0 ? require_known_command(*command, argc - 1, argv + 1)
                                                       : void();
    known += " " + command->get_name();
  }
  const std::string name = program.get_name().empty() ? "kv2" : "kv2 " + program.get_name();
  throw kv2::Error(kv2::ErrorCode::BadArgument,
                   fmt::format("no command '{}'; commands:{} ({} --help)", argv[1], known, name));
}

}  // namespace

int main(int argc, char** argv) {
  kv2::app::remember_command(argc, argv);
  CLI::App program{"kv2: long contexts on a 2-bit KV cache"};
  program.set_version_flag("--version", KV2_VERSION);
  program.require_subcommand(1);
  program.add_flag_callback(
      "-q,--quiet", [] { kv2::set_quiet(true); }, "only warnings and errors on stderr");
  program.fallthrough();
  kv2::app::add_run(program);
  kv2::app::add_calibrate(program);
  kv2::app::add_eval(program);
  kv2::app::add_tune(program);
  kv2::app::add_plan(program);
  kv2::app::add_bench(program);
  kv2::app::add_logits(program);
  kv2::app::add_tokenize(program);
  kv2::app::add_inspect(program);
  try {
    require_known_command(program, argc, argv);
    program.parse(argc, argv);
    if (std::fflush(stdout) != 0 || std::ferror(stdout))
      throw kv2::Error(kv2::ErrorCode::Io, "cannot write to stdout");
    return 0;
  } catch (const CLI::Success& e) {  // --help, --version
    const int code = program.exit(e);
    if (!std::cout.flush()) fmt::print(stderr, "kv2: cannot write to stdout\n");
    return std::cout ? code : 1;
  } catch (const CLI::ParseError& e) {
    fmt::print(stderr, "kv2: {}\nTry: kv2 --help, kv2 COMMAND --help\n", e.what());
    return 2;
  } catch (const kv2::Error& e) {
    fmt::print(stderr, "kv2: {}\n", e.what());
    return exit_code(e.code());
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "kv2: out of memory; a smaller --ctx needs less (see: kv2 plan MODEL --ctx N)\n");
    return 1;
  } catch (const std::exception& e) {
    fmt::print(stderr, "kv2: {}\n", e.what());
    return 1;
  }
}
