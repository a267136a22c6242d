#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>

#include "base/check.h"

namespace kv2 {
namespace {

std::atomic<bool> g_quiet{false};
std::atomic<bool> g_interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free, "written by a signal handler");

spdlog::logger& logger() {
  static const auto log = [] {
    auto l = spdlog::stderr_color_mt("kv2");
    l->set_pattern("%v");
    return l;
  }();
  return *log;
}

}  // namespace

void log_info(const std::string& text) {
  if (!g_quiet) logger().info("{}", text);
}
void log_warning(const std::string& text) {
  logger().warn("warning: {}", text);
}
void set_quiet(bool quiet) {
  g_quiet = quiet;
}

Progress::Progress(std::string title, int64_t total)
    : title_(std::move(title)), total_(total), start_(std::chrono::steady_clock::now()), drawn_(start_) {}

Progress::~Progress() {
  if (any_) draw(true);
}

void Progress::advance(int64_t done_more) {
  done_ += done_more;
  const auto now = std::chrono::steady_clock::now();
  const auto every = ::isatty(2) ? std::chrono::milliseconds(200) : std::chrono::milliseconds(5000);
  if (g_quiet || now - drawn_ < every) return;
  drawn_ = now;
  any_ = true;
  draw(false);
}

void Progress::draw(bool last) {
  const double spent = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  const double share = total_ > 0 ? static_cast<double>(done_) / static_cast<double>(total_) : 1.0;
  const std::string rest = last ? fmt::format("{:.1f} s", spent)
                                : fmt::format("ETA {:.0f} s", share > 0 ? spent / share - spent : 0.0);
  const bool terminal = ::isatty(2);
  const char* begin = terminal ? "\r\033[K" : "";
  const char* end = terminal && !last ? "" : "\n";
  std::fputs(fmt::format("{}{}  {:3.0f} %  {}{}", begin, title_, 100 * share, rest, end).c_str(), stderr);
  std::fflush(stderr);
}

void catch_interrupts() {
  struct sigaction action {};
  action.sa_handler = [](int) { g_interrupted.store(true, std::memory_order_relaxed); };
  action.sa_flags = static_cast<int>(SA_RESETHAND);  // a second Ctrl-C ends the program at once
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
}

bool interrupted() noexcept {
  return g_interrupted.load(std::memory_order_relaxed);
}

void throw_if_interrupted() {
  if (interrupted()) throw Error(ErrorCode::Interrupted, "interrupted");
}

}  // namespace kv2
