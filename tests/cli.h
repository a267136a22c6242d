// SPDX-License-Identifier: Apache-2.0
// Cli: the built program run from outside, over the small committed checkpoints.
#pragma once

#include <gtest/gtest.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

namespace kv2::test {

namespace fs = std::filesystem;

struct Result {
  int code;
  std::string out, err;
};

class Cli : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    dir_ = fs::path(::testing::TempDir()) / (std::string("kv2_cli_") + info->name());
    fs::remove_all(dir_);
    fs::create_directories(dir_);
  }
  void TearDown() override { fs::remove_all(dir_); }

  // The user's cache is a folder of the test, so that no calibration of this machine is found.
  Result run(const std::string& arguments, const std::string& input = "") const {
    const std::string err = path("stderr.txt"), in = path("stdin.txt");
    std::ofstream(in, std::ios::binary) << input;
    const std::string command =
        "XDG_CACHE_HOME=" + path("cache") + " " KV2_PROGRAM " " + arguments + " <" + in + " 2>" + err;
    Result r{};
    std::FILE* pipe = ::popen(command.c_str(), "r");
    std::array<char, 4096> buffer;
    for (size_t n; (n = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;)
      r.out.append(buffer.data(), n);
    const int status = ::pclose(pipe);
    r.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    std::stringstream text;
    text << std::ifstream(err).rdbuf();
    r.err = text.str();
    return r;
  }
  /// The same with a terminal as stdin, stdout and stderr, on which these lines are typed, each when the
  /// program asks ("> ") for it. `out` is what the terminal shows.
  Result run_on_terminal(const std::string& arguments, const std::vector<std::string>& lines) const {
    int terminal = -1;
    const std::string command = "XDG_CACHE_HOME=" + path("cache") + " " KV2_PROGRAM " " + arguments;
    const pid_t child = ::forkpty(&terminal, nullptr, nullptr, nullptr);
    if (child == 0) {
      ::execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
      ::_exit(127);
    }
    Result r{};
    size_t typed = 0, seen = 0;
    std::array<char, 4096> buffer;
    for (ssize_t n; (n = ::read(terminal, buffer.data(), buffer.size())) > 0;) {  // EIO when it has ended
      r.out.append(buffer.data(), static_cast<size_t>(n));
      for (size_t at; typed < lines.size() && (at = r.out.find("> ", seen)) != std::string::npos; typed++) {
        const std::string line = lines[typed] + "\n";
        if (::write(terminal, line.data(), line.size()) < 0) break;
        seen = at + 2;
      }
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    ::close(terminal);
    r.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return r;
  }
  std::string path(const std::string& name) const { return (dir_ / name).string(); }
  void write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path(name), std::ios::binary) << bytes;
  }
  std::string model(const std::string& name) const { return KV2_SOURCE_DIR "/tests/fixtures/" + name; }
  /// Token ids as .npy (int32), of the small checkpoints' vocabulary.
  std::string tokens(int n) const {
    std::string header = "{'descr': '<i4', 'fortran_order': False, 'shape': (" + std::to_string(n) + ",), }";
    header.resize((10 + header.size() + 1 + 63) / 64 * 64 - 11, ' ');
    std::string bytes = std::string("\x93NUMPY\x01\x00", 8);
    bytes += static_cast<char>((header.size() + 1) & 255);
    bytes += static_cast<char>((header.size() + 1) >> 8);
    bytes += header + "\n";
    for (int i = 0; i < n; i++) {
      const int32_t id = (i * 37 + i / 7) % 200;
      bytes.append(reinterpret_cast<const char*>(&id), 4);
    }
    write("tokens.npy", bytes);
    return path("tokens.npy");
  }

  /// A copy of a small checkpoint that has a tokenizer: one token for each printable character, space and
  /// line break.
  std::string speaking() const {
    const fs::path copy = dir_ / "speaking";
    if (fs::exists(copy)) return copy.string();
    fs::copy(model("qwen3"), copy, fs::copy_options::recursive);
    nlohmann::json vocab = {{"\u0120", 0}, {"\u010A", 1}};
    for (char c = '!'; c <= '~'; c++) vocab[std::string(1, c)] = vocab.size();
    vocab["zz"] = vocab.size();
    while (vocab.size() < 251) vocab["<" + std::to_string(vocab.size()) + ">"] = vocab.size();
    const nlohmann::json tokenizer = {{"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
                                      {"added_tokens", nlohmann::json::array()},
                                      {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", {"z z"}}}}};
    std::ofstream(copy / "tokenizer.json") << tokenizer.dump();
    return copy.string();
  }

  /// A copy of a small checkpoint whose named tensor (BF16) holds the largest numbers there are.
  std::string overflowing(const std::string& name, const std::string& tensor) const {
    const fs::path copy = dir_ / ("overflowing " + tensor);
    fs::copy(model(name), copy, fs::copy_options::recursive);
    std::fstream file(copy / "model.safetensors", std::ios::binary | std::ios::in | std::ios::out);
    uint64_t n = 0;
    file.read(reinterpret_cast<char*>(&n), sizeof(n));
    std::string header(n, ' ');
    file.read(header.data(), static_cast<std::streamsize>(n));
    const auto offsets = nlohmann::json::parse(header).at(tensor).at("data_offsets");
    const size_t begin = offsets[0], end = offsets[1];
    file.seekp(static_cast<std::streamoff>(8 + n + begin));
    for (size_t i = begin; i < end; i++) file.put('\x7f');  // 0x7f7f: 3.39e38
    return "'" + copy.string() + "'";
  }

  fs::path dir_;
};

/// One line that says each of `parts`, and this exit code; no crash, no second error line.
inline void expect_refused(const Result& r, int code, const std::vector<std::string>& parts) {
  EXPECT_EQ(r.code, code) << r.err;
  EXPECT_EQ(r.out, "");
  for (const std::string& part : parts)
    EXPECT_NE(r.err.find(part), std::string::npos) << "no '" << part << "' in: " << r.err;
  EXPECT_EQ(r.err.find("bug:"), std::string::npos) << r.err;
}

}  // namespace kv2::test
