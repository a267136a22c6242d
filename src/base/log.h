// Progress and notices for people, always on stderr: stdout is data. No bars when stderr is not a terminal.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace kv2 {

void log_info(const std::string& text);
void log_warning(const std::string& text);
/// Nothing below warnings is printed while quiet.
void set_quiet(bool quiet);

/// "calibrate  45 %  ETA 12 s": a line redrawn on a terminal, one line per five seconds elsewhere.
class Progress {
 public:
  Progress(std::string title, int64_t total);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void advance(int64_t done_more);

 private:
  void draw(bool last);
  std::string title_;
  int64_t total_, done_ = 0;
  std::chrono::steady_clock::time_point start_, drawn_;
  bool any_ = false;
};

/// Ctrl-C as a question: installs a handler once; long loops call throw_if_interrupted() between steps.
void catch_interrupts();
bool interrupted() noexcept;
void throw_if_interrupted();  // Error{Interrupted}

}  // namespace kv2
