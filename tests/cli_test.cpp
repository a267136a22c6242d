// SPDX-License-Identifier: Apache-2.0
// The program from outside: bad input gives one clear line on stderr, the right exit code and nothing
// half-written; good input gives data on stdout. Runs the built program; models are the small committed
// checkpoints.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <sys/stat.h>
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

namespace {

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
void expect_refused(const Result& r, int code, const std::vector<std::string>& parts) {
  EXPECT_EQ(r.code, code) << r.err;
  EXPECT_EQ(r.out, "");
  for (const std::string& part : parts)
    EXPECT_NE(r.err.find(part), std::string::npos) << "no '" << part << "' in: " << r.err;
  EXPECT_EQ(r.err.find("bug:"), std::string::npos) << r.err;
}

TEST_F(Cli, UsageErrorsExitWithTwo) {
  expect_refused(run(""), 2, {"--help"});
  expect_refused(run("frobnicate"), 2, {"frobnicate"});
  expect_refused(run("run " + model("qwen3") + " --no-such-flag"), 2, {"--no-such-flag"});
  expect_refused(run("eval kld " + model("qwen3")), 2, {"--text", "--tokens"});
  expect_refused(run("plan " + model("qwen3") + " --kv int7"), 2, {"int7", "naive2", "oscar2"});
  expect_refused(run("plan " + model("qwen3") + " --kv oscar2:clip-q=3"), 2, {"clip-q", "clip-k"});
  expect_refused(run("plan " + model("qwen3") + " --kv oscar2:group=48"), 2, {"48"});
  expect_refused(run("plan " + model("qwen3") + " --sink 65"), 2, {"65", "64"});
  expect_refused(run("plan " + model("qwen3") + " --ctx -1"), 2, {"--ctx", "-1"});
  expect_refused(run("plan " + model("qwen3") + " --kv naive2 --kv-layers 0,1"), 2,
                 {"--kv-layers '0,1'", "0,1,-1=int8 5=bf16"});
  expect_refused(run("plan " + model("qwen3") + " --kv bf16 --kv-layers 99=int8"), 2,
                 {"99=int8", "bf16", "--kv"});
  expect_refused(run("plan " + model("qwen3") + " --kv bf16,naive2 --kv-layers 99=int8"), 2,
                 {"layers=99", "0 to 2"});
  EXPECT_EQ(run("plan " + model("qwen3") + " --kv bf16,naive2 --kv-layers 2=int8").code, 0);
  for (const std::string command : {"run", "calibrate"})
    expect_refused(run(command + " " + model("qwen3") + " --seed -1"), 2, {"--seed", "-1"});
  const std::string huge = "logits " + model("qwen3") + " --tokens t.npy --out l.npy --huge-pages ";
  expect_refused(run(huge + "some"), 2, {"--huge-pages", "some", "on,off"});
  expect_refused(run(huge + "off --device reference"), 2, {"huge pages", "cpu", "'reference'"});
  expect_refused(run("eval nonsense"), 2, {"nonsense", "kld", "kv2 eval --help"});
  EXPECT_EQ(run("--help").code, 0);
  EXPECT_EQ(run("--version").code, 0);
  for (const std::string command : {"--help", "--version", "plan --help"})
    expect_refused(run(command + " >/dev/full"), 1, {"stdout"});
}

TEST_F(Cli, MissingAndForeignFilesAreNamed) {
  expect_refused(run("plan " + path("absent.gguf")), 1, {"absent.gguf"});
  write("text.gguf", "this is no model");
  expect_refused(run("plan " + path("text.gguf")), 1, {"text.gguf", "GGUF"});
  fs::create_directories(dir_ / "empty");
  expect_refused(run("plan " + path("empty")), 1, {"config.json"});
  fs::copy(model("qwen3"), dir_ / "mamba", fs::copy_options::recursive);
  write("mamba/config.json", R"({"architectures": ["MambaForCausalLM"], "model_type": "mamba"})");
  expect_refused(run("plan " + path("mamba")), 1, {"Mamba", "Qwen3ForCausalLM"});
}

TEST_F(Cli, TruncatedCheckpointIsRefused) {
  for (const char* name : {"half", "header"}) {
    const fs::path copy = dir_ / name;
    fs::copy(model("qwen3"), copy, fs::copy_options::recursive);
    for (const auto& entry : fs::directory_iterator(copy))
      if (entry.path().extension() == ".safetensors")
        fs::resize_file(entry.path(), std::string(name) == "half" ? fs::file_size(entry.path()) / 2 : 5);
    expect_refused(run("logits " + copy.string() + " --tokens " + tokens(8) + " --out " + path("l.npy")), 1,
                   {"safetensors"});
    EXPECT_FALSE(fs::exists(path("l.npy")));
  }
}

TEST_F(Cli, CalibratedMethodWithoutCalibrationNamesTheCommand) {
  expect_refused(run("eval kld " + model("qwen3") + " --kv oscar2 --tokens " + tokens(512)), 2,
                 {"kv2 calibrate"});
}

TEST_F(Cli, PlanReadsTheCalibrationThatItIsGiven) {
  expect_refused(run("plan " + model("qwen3") + " --kv oscar2 --calibration " + path("absent")), 1,
                 {"absent"});
  const std::string other = path("other.safetensors");
  ASSERT_EQ(run("calibrate " + model("qwen2-tied") + " --n-tokens 256 --held-out 0 --window 64 --tokens " +
                tokens(256) + " --out " + other)
                .code,
            0);
  EXPECT_EQ(run("plan " + model("qwen2-tied") + " --kv oscar2 --calibration " + other).code, 0);
  expect_refused(run("plan " + model("qwen3") + " --kv oscar2 --calibration " + other), 1,
                 {"calibration is for", "kv2 calibrate"});
}

// A number that is none is no answer, and is said when it is seen, not when all the work has been done.
TEST_F(Cli, OverflowingWeightsAreRefused) {
  expect_refused(run("logits " + overflowing("qwen3", "model.norm.weight") + " --tokens " + tokens(8) +
                     " --out " + path("l.npy")),
                 1, {"NaN", "overflow"});
  EXPECT_FALSE(fs::exists(path("l.npy")));
  expect_refused(run("calibrate " + overflowing("qwen3", "model.layers.1.self_attn.v_proj.weight") +
                     " --n-tokens 256 --held-out 0 --window 64 --tokens " + tokens(256) + " --out " +
                     path("c.safetensors")),
                 1, {"layer 1", "values", "overflow"});
  EXPECT_FALSE(fs::exists(path("c.safetensors")));
}

// What a judge is asked that no model or text can give: what was found, what is supported, what to do.
TEST_F(Cli, JudgesRefuseBadInput) {
  const std::string end = model("qwen3") + " --tokens ", kld = "eval kld " + end + tokens(500) + " --kv ";
  expect_refused(run(kld + "int7"), 2, {"int7", "naive2", "gtq2"});
  expect_refused(run(kld + "naive2:group=20"), 2, {"20", "head_dim 32", "4, 8, 16, 32"});
  expect_refused(run(kld + "kivi2:group-k=48"), 2, {"48", "4, 8, 16, 32, 64"});
  expect_refused(run(kld + "naive2:bits=5"), 2, {"'5'", "1, 2, 3, 4 or 8"});
  expect_refused(run(kld + "tq2:qjl=k,bits=1"), 2, {"1 bits", "2, 3 or 4"});
  for (const char* method : {"kv2", "oscar2", "gtq2", "naive2:clip=search"})
    expect_refused(run(kld + method), 2, {"calibration", "kv2 calibrate"});
  expect_refused(run(kld + "naive2 --window 999999"), 2, {"999999", "context is", "--window"});
  for (const int n : {0, 3}) {
    const std::string text = end + tokens(n), found = std::to_string(n);
    expect_refused(run("eval kld " + text), 2, {"385", "got " + found, "--sink"});
    expect_refused(run("eval attend " + text), 2, {"448", "has " + found, "--sink"});
    expect_refused(run("eval norms " + text), 2, {"32", "has " + found, "--group"});
    expect_refused(run("eval generate " + text), 2, {"has " + found, "256"});
    expect_refused(run("tune --kv quarot2 " + text), 2, {"385", "got " + found});
    expect_refused(run("calibrate " + text + " --out " + path("c")), 2, {"has " + found, "more text"});
  }
  const std::string longer = end + tokens(5000);  // than the context
  for (const std::string judge : {"eval attend ", "eval norms "})
    expect_refused(run(judge + longer), 2, {"5000 tokens", "context is", "--max-tokens"});
}

TEST_F(Cli, JudgesTakeKv2WhereACalibrationIsFound) {
  const std::string kld = "eval kld " + model("qwen3") + " --json --tokens " + tokens(500);
  const auto methods_of = [](const Result& r) {
    std::string out;
    std::stringstream lines(r.out);
    for (std::string line; std::getline(lines, line);)
      out += nlohmann::json::parse(line)["method"].get<std::string>() + " ";
    return out;
  };
  const Result without = run(kld);
  EXPECT_EQ(methods_of(without), "bf16 quarot2 ");
  EXPECT_NE(without.err.find("kv2 calibrate " + model("qwen3")), std::string::npos) << without.err;
  const std::string calibrate = "-q calibrate " + model("qwen3") +
                                " --n-tokens 256 --held-out 0 --window 64 --tokens " + tokens(500) +
                                " --out ";
  ASSERT_EQ(run(calibrate + path("c.safetensors")).code, 0);
  EXPECT_EQ(methods_of(run(kld + " --calibration " + path("c.safetensors"))), "bf16 kv2 ");
  ASSERT_EQ(run("-q calibrate " + model("qwen3") + " --n-tokens 256 --held-out 0 --window 64 --tokens " +
                tokens(500))
                .code,
            0);
  const Result with = run(kld);
  EXPECT_EQ(methods_of(with), "bf16 kv2 ");
  EXPECT_NE(with.err.find("kv           kv2: first 64"), std::string::npos) << with.err;
  EXPECT_EQ(methods_of(run(kld + " --kv bf16,quarot2")), "bf16 quarot2 ") << "what is asked for is judged";
}

// What quarot2 takes and kv2 does not is refused before it is known which of them it will be.
TEST_F(Cli, DefaultMethodsAreCheckedInBothForms) {
  const std::string layers = " --kv-layers '0=k8v8'";
  for (const std::string& command :
       {"eval kld " + model("qwen3") + " --tokens " + tokens(500), "run " + model("qwen3") + " --prompt a"}) {
    const Result r = run(command + layers);
    expect_refused(r, 2, {"method kv2: error feedback", "where a calibration is found"});
    const std::string other = command.starts_with("run") ? "--kv quarot2" : "--kv bf16,quarot2";
    EXPECT_NE(r.err.find("the other choice is " + other), std::string::npos) << r.err;
    EXPECT_EQ(r.err.find("load model"), std::string::npos) << "said before anything is loaded: " << r.err;
  }
  EXPECT_EQ(
      run("eval kld " + model("qwen3") + " --tokens " + tokens(500) + layers + " --kv bf16,quarot2").code, 0);
}

TEST_F(Cli, CalibrationOfAnotherModelIsRefused) {
  const std::string file = path("c.safetensors");
  const Result made = run("-q calibrate " + model("qwen3") + " --tokens " + tokens(1500) +
                          " --n-tokens 512 --held-out 256 --window 256 --out " + file);
  ASSERT_EQ(made.code, 0) << made.err;
  EXPECT_EQ(made.out, file + "\n");
  EXPECT_EQ(run("inspect " + file).code, 0);
  expect_refused(run("logits " + model("llama-llama3-rope") + " --kv oscar2 --calibration " + file +
                     " --tokens " + tokens(8) + " --out " + path("l.npy")),
                 1, {"qwen3-", "llama-", "kv2 calibrate"});
  const Result used = run("logits " + model("qwen3") + " --kv oscar2 --calibration " + file + " --tokens " +
                          tokens(8) + " --out " + path("l.npy"));
  EXPECT_EQ(used.code, 0) << used.err;
  EXPECT_TRUE(fs::exists(path("l.npy")));
}

TEST_F(Cli, UnwritableOutputLeavesNothing) {
  expect_refused(run("logits " + model("qwen3") + " --tokens " + tokens(8) + " --out /proc/none/l.npy"), 1,
                 {"/proc/none/l.npy"});
  fs::create_directories(dir_ / "folder");
  const std::string calibrate = "calibrate " + model("qwen3");
  for (const std::string option : {" --out ", " --save-tokens "}) {
    const Result r = run(calibrate + option + path("folder"));
    expect_refused(r, 1, {"folder", "directory"});
    EXPECT_EQ(r.err.find("backend"), std::string::npos) << "said before anything is loaded: " << r.err;
  }
  EXPECT_TRUE(fs::is_empty(dir_ / "folder"));
}

// A folder that is made silently hides a typo.
TEST_F(Cli, FoldersOfOutputFilesAreNotMade) {
  const std::string folder = path("typo"), file = folder + "/file", of = model("qwen3");
  for (const std::string& command :
       {"logits " + of + " --tokens " + tokens(8) + " --out ", "calibrate " + of + " --out ",
        "calibrate " + of + " --out " + path("c") + " --save-tokens ",
        "eval generate " + of + " --tokens " + tokens(8) + " --save ",
        "eval ruler " + of + " --write-haystacks ", "eval ruler " + of + " --write-tokens "}) {
    const Result r = run(command + file);
    expect_refused(r, 1, {"cannot write '" + file + "'", "no directory '" + folder + "'"});
    EXPECT_EQ(r.err.find("backend"), std::string::npos) << "said before anything is loaded: " << r.err;
    EXPECT_FALSE(fs::exists(folder)) << command;
  }
  EXPECT_FALSE(fs::exists(path("cache")));
  const Result cached =
      run("-q calibrate " + of + " --n-tokens 256 --held-out 0 --window 64 --tokens " + tokens(256));
  EXPECT_EQ(cached.code, 0) << cached.err;
  EXPECT_TRUE(fs::exists(path("cache"))) << "the user's cache is made";
}

// A rename would put a file where a device or a pipe was: /dev/null, where the user is root.
TEST_F(Cli, OutputGoesThroughLinksAndIntoPipes) {
  const std::string start = "logits " + model("qwen3") + " --tokens " + tokens(8) + " --out ";
  write("old.npy", "old");
  fs::create_symlink("old.npy", dir_ / "link");
  ASSERT_EQ(run(start + path("link")).code, 0);
  EXPECT_TRUE(fs::is_symlink(dir_ / "link"));
  EXPECT_EQ(fs::file_size(dir_ / "old.npy"), 128u + 8 * 251 * 4);
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  const int pipe = ::open(path("pipe").c_str(), O_RDWR);  // holds all of it, so that no reader is needed
  ASSERT_GE(pipe, 0);
  const Result r = run(start + path("pipe"));
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_TRUE(fs::is_fifo(dir_ / "pipe"));
  std::array<char, 6> first{};
  ASSERT_TRUE(fs::is_fifo(dir_ / "pipe") && ::read(pipe, first.data(), first.size()) == 6);
  EXPECT_EQ(std::string(first.data(), 6), "\x93NUMPY");
  ::close(pipe);
}

TEST_F(Cli, BadTokenFilesAreRefused) {
  write("bad.npy", "\x93NUMPY");
  const std::string end = " --out " + path("l.npy");
  expect_refused(run("logits " + model("qwen3") + " --tokens " + path("bad.npy") + end), 1, {"bad.npy"});
  std::string bytes = [&] {
    std::stringstream s;
    s << std::ifstream(tokens(4), std::ios::binary).rdbuf();
    return s.str();
  }();
  const int32_t huge = 1 << 30;
  std::copy_n(reinterpret_cast<const char*>(&huge), 4, bytes.end() - 4);
  write("tokens.npy", bytes);
  expect_refused(run("logits " + model("qwen3") + " --tokens " + path("tokens.npy") + end), 2,
                 {std::to_string(huge), "vocabulary"});
  EXPECT_FALSE(fs::exists(path("l.npy")));
}

// Bytes that are no text are taken as they are, but never without a word.
TEST_F(Cli, BytesThatAreNoTextAreSaid) {
  std::string bytes(700, 'a');
  bytes[7] = '\xff';
  bytes[20] = '\xff';
  write("program", bytes);
  const std::string text = " --text " + path("program"),
                    said = "program is not valid UTF-8, first at byte 7 of 700";
  const auto times = [](const Result& r, const std::string& part) {
    int n = 0;
    for (size_t at = r.err.find(part); at != std::string::npos; at = r.err.find(part, at + 1)) n++;
    return n;
  };
  for (const std::string& command :
       {"eval kld " + speaking() + " --max-tokens 400" + text,
        "eval norms " + speaking() + " --max-tokens 400" + text,
        "eval generate " + speaking() + " --kv bf16 --pieces 2 --max-tokens 3" + text,
        "calibrate " + speaking() + " --n-tokens 256 --held-out 0 --window 64 --out " + path("c") + text,
        "run " + speaking() + " --raw -n 1 -f " + path("program") + " --ctx 512",
        "tokenize " + speaking() + text}) {
    const Result r = run("-q " + command);
    EXPECT_EQ(times(r, said), 1) << command << ": " << r.err;
  }
  const Result one = run("tokenize " + speaking() + " --prompt '\xff'");
  EXPECT_EQ(one.code, 0) << one.err;
  EXPECT_EQ(times(one, "--prompt is not valid UTF-8, first at byte 0 of 1"), 1) << one.err;
  EXPECT_EQ(
      times(run("tokenize " + speaking(), "ab\xC3"), "standard input is not valid UTF-8, first at byte 2"),
      1);
  EXPECT_EQ(run("tokenize " + speaking() + " --prompt a\xC3\xA9").err, "");
}

// A chat goes on where the context is full, with what was said before.
TEST_F(Cli, AChatOutlivesItsContext) {
  const std::string chat = "run " + speaking() + " --raw --ignore-eos --kv bf16 -n 20 --ctx 128";
  const std::string first(60, 'a'), too_long(200, 'b'), fills(30, 'c');
  // 80 tokens; 280 do not fit; 110 and 18 of 20; 80 again and 5 and 20
  const Result r = run_on_terminal(chat, {first, too_long, fills, "ddddd", ""});
  EXPECT_EQ(r.code, 0) << r.out;
  const auto says = [&](const std::string& part) { return r.out.find(part) != std::string::npos; };
  EXPECT_TRUE(says("280 tokens")) << r.out;
  EXPECT_TRUE(says("context of 128")) << r.out;
  EXPECT_TRUE(says("--ctx gives more, up to the 512")) << r.out;
  EXPECT_TRUE(says("the context of 128 tokens is full; --ctx gives more")) << r.out;
  // What the last turn answers is what it answers where the two before it never were.
  const Result without = run_on_terminal(chat, {first, "ddddd", ""});
  const auto last_answer = [](const std::string& out) {
    const size_t end = out.rfind("\r\n> "), begin = out.rfind("ddddd", end);
    return begin == std::string::npos || end == std::string::npos ? out : out.substr(begin, end - begin);
  };
  EXPECT_EQ(last_answer(r.out), last_answer(without.out));
  write("long.txt", std::string(300, 'a'));
  const std::string file = "run " + speaking() + " --raw --kv bf16 -f " + path("long.txt") + " --ctx ";
  expect_refused(run(file + "128"), 2, {"300 tokens", "--ctx gives more", "512"});
  write("long.txt", std::string(600, 'a'));
  expect_refused(run(file + "512"), 2, {"600 tokens", "trained for 512 and no more"});
}

TEST_F(Cli, MessagesAreForPeople) {
  const std::string qwen3 = model("qwen3"), text = qwen3 + " --tokens " + tokens(500);
  for (const std::string& command :
       {"plan " + qwen3 + " --ctx -5", "run " + qwen3 + " -p a --ctx -5",
        "eval norms " + text + " --max-tokens -5", "eval norms " + text + " --skip -5",
        "eval kld " + text + " --stride -5", "tune " + text + " --at -5"}) {
    const Result r = run(command);
    expect_refused(r, 2, {"or more is expected, not -5"});
    EXPECT_LT(r.err.size(), 200u) << r.err;
  }
  EXPECT_NE(run("plan " + qwen3).out.find("1 sequence of 512 tokens"), std::string::npos);
  EXPECT_NE(run("plan " + qwen3 + " --parallel 2").out.find("2 sequences of 512 tokens"), std::string::npos);
  fs::copy(qwen3, dir_ / "my model", fs::copy_options::recursive);
  const std::string mine = " '" + path("my model") + "'", make = "kv2 calibrate" + mine;
  expect_refused(run("eval kld" + mine + " --kv oscar2 --tokens " + tokens(500)), 2, {make});
  expect_refused(run("tune" + mine + " --kv oscar2 --tokens " + tokens(500)), 2, {make});
  expect_refused(run("logits" + mine + " --kv oscar2 --out " + path("l.npy") + " --tokens " + tokens(8)), 2,
                 {make});
  EXPECT_NE(run("eval norms" + mine + " --tokens " + tokens(500)).err.find(make), std::string::npos);
  const std::string start = "-q run " + speaking() + " --raw -n 1 --kv bf16 -p a";
  EXPECT_NE(run(start, "b").err.find("standard input is not read"), std::string::npos);
  EXPECT_EQ(run(start).err, "");
}

TEST_F(Cli, EmptyPromptAndLongContextAreRefused) {
  expect_refused(run("run " + model("qwen3")), 2, {"prompt is empty"});
  expect_refused(run("plan " + model("qwen3") + " --ctx 999999999"), 2, {"999999999", "positions"});
  const Result r = run("run " + model("qwen3") + " --prompt a --ctx 513");
  expect_refused(r, 2, {"513", "512 positions"});
  EXPECT_EQ(r.err.find("load model"), std::string::npos) << "said before anything is loaded: " << r.err;
}

TEST_F(Cli, EvalAndPlanPrintOneJsonObjectPerMethod) {
  const Result r =
      run("-q eval kld " + model("qwen3") +
          " --kv bf16,naive2:group=16 --kv quarot2 --json --sink 64 --recent 64 --tokens " + tokens(300));
  ASSERT_EQ(r.code, 0) << r.err;
  std::stringstream lines(r.out);
  std::vector<nlohmann::json> rows;
  for (std::string line; std::getline(lines, line);) rows.push_back(nlohmann::json::parse(line));
  ASSERT_EQ(rows.size(), 3u);
  for (const char* key : {"method", "history_bits", "all_in_bits", "kv_bytes", "tokens", "ppl", "kl_mean",
                          "kl_median", "kl_p99", "kl_max", "top1"})
    for (const auto& row : rows) EXPECT_TRUE(row.contains(key)) << key;
  EXPECT_EQ(rows[0]["kl_mean"], 0.0);
  EXPECT_EQ(rows[0]["top1"], 1.0);
  EXPECT_GT(rows[1]["kl_mean"], 0.0);
  const Result twice =
      run("-q eval kld " + model("qwen3") +
          " --kv naive2,bf16,naive2:bits=2 --json --sink 0 --recent 0 --tokens " + tokens(300));
  EXPECT_EQ(std::count(twice.out.begin(), twice.out.end(), '\n'), 2) << "a method named twice is judged once";
  const Result plan = run("plan " + model("qwen3") + " --kv bf16,quarot2 --ctx 512 --json");
  ASSERT_EQ(plan.code, 0) << plan.err;
  EXPECT_EQ(std::count(plan.out.begin(), plan.out.end(), '\n'), 2);
}

// One run in which each method has its paper's schedule gives the lines that its windows by hand give.
TEST_F(Cli, SchedulesOfPapersByName) {
  const std::string kld = "eval kld " + model("qwen3") + " --json --tokens " + tokens(512) + " --kv ";
  const Result r = run(kld + "bf16,kivi2,omni2,quarot2,kitty2 --schedule paper");
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_NE(
      r.err.find(
          "kv           kivi2: first 0 and last 128 tokens in bf16, 2-bit history between, exact prefill"),
      std::string::npos)
      << r.err;
  std::stringstream lines(r.out);
  const auto next = [](std::stringstream& from) {
    std::string line;
    std::getline(from, line);
    return nlohmann::json::parse(line);
  };
  EXPECT_EQ(next(lines)["prefill"], "windowed") << "of bf16";
  for (const std::string by_hand :
       {"kivi2 --prefill exact --sink 0 --recent 128", "omni2 --prefill exact --sink 0 --recent 128",
        "quarot2 --sink 0 --recent 0", "kitty2 --prefill exact --sink 64 --recent 128"}) {
    auto own = next(lines);
    EXPECT_EQ(own["run"]["schedule"], "paper");
    if (by_hand.starts_with("quarot2")) {  // alone, it would be scored in the first half, too
      EXPECT_EQ(own["sink"], 0);
      EXPECT_EQ(own["recent"], 0);
      continue;
    }
    const Result alone = run("-q " + kld + by_hand);
    ASSERT_EQ(alone.code, 0) << alone.err;
    auto other = nlohmann::json::parse(alone.out);
    EXPECT_FALSE(other["run"].contains("schedule"));
    for (const char* key : {"run", "rival"}) own.erase(key), other.erase(key);
    EXPECT_EQ(own, other);
  }
  const Result all = run("-q " + kld + "naive2 --schedule kivi2");
  ASSERT_EQ(all.code, 0) << all.err;
  EXPECT_EQ(nlohmann::json::parse(all.out)["recent"], 128);
  const Result help = run("eval kld --help");
  EXPECT_NE(help.out.find("kv2, which is of no paper, keeps"), std::string::npos) << help.out;
  expect_refused(run(kld + "naive2 --schedule paper"), 2, {"naive2 has no schedule", "kivi2"});
  expect_refused(run(kld + "kivi2 --schedule kivi"), 2, {"'kivi' is unknown", "paper", "omni2"});
  expect_refused(run(kld + "kivi2 --schedule paper --sink 64"), 2, {"--schedule paper", "--sink"});
  expect_refused(run(kld + "kivi2 --schedule paper --prefill windowed"), 2, {"--prefill"});
  expect_refused(run("eval attend " + model("qwen3") + " --schedule paper --tokens " + tokens(500)), 2,
                 {"--schedule"});
}

TEST_F(Cli, RulerReadsHaystacksOfAFile) {
  nlohmann::json haystack = {
      {"ids", nlohmann::json::array()},
      {"questions", {{{"question", {4, 6}}, {"answer", {8, 10}}}, {{"question", {2}}, {"answer", {1}}}}}};
  for (int i = 0; i < 100; i++) haystack["ids"].push_back(i * 37 % 200);
  write("h.json", nlohmann::json{{"sets", {{{"task", "mine"}, {"haystacks", {haystack}}}}}}.dump());
  const std::string ruler =
      "-q eval ruler " + model("qwen3") + " --score exact --json --recent 0 --haystacks ";
  const Result r = run(ruler + path("h.json") + " --kv bf16,naive2:group=16 --sink 0");
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_EQ(std::count(r.out.begin(), r.out.end(), '\n'), 2);
  const auto row = nlohmann::json::parse(r.out.substr(0, r.out.find('\n')));
  EXPECT_EQ(row["judge"], "ruler");
  EXPECT_EQ(row["task"], "mine");
  EXPECT_EQ(row["questions"], 2);
  EXPECT_EQ(row["haystacks"], 1);
  EXPECT_TRUE(row.contains("exact"));
  EXPECT_FALSE(row.contains("substring"));
  EXPECT_EQ(row["run"]["text_tokens"], 106) << "haystack, questions and answers";
  EXPECT_EQ(run(ruler + path("h.json") + " --kv bf16,naive2:group=16 --sink 0").out, r.out)
      << "twice the same numbers";
  expect_refused(run(ruler + path("h.json") + " --kv bf16,naive2:group=16"), 2,
                 {"mine", "naive2", "position 128", "104 tokens", "130 or more", "--sink"});
  EXPECT_EQ(run(ruler + path("h.json") + " --kv bf16").code, 0) << "nothing in codes";
  // The file says which tasks and lengths there are.
  for (const std::string made : {"--task niah_multikey_1", "--length 70", "--seed 3", "--questions 1"})
    expect_refused(run(ruler + path("h.json") + " --kv bf16 " + made), 2,
                   {"--haystacks", made.substr(0, made.find(' '))});
  write("bad.json", R"({"sets": [{"task": "mine", "haystacks": [{"ids": [99999], "questions": [
      {"question": [4], "answer": [8]}]}]}]})");
  expect_refused(run(ruler + path("bad.json") + " --kv bf16"), 2, {"99999", "vocabulary"});
  write("bad.json", "{}");
  expect_refused(run(ruler + path("bad.json")), 1, {"bad.json", "sets"});
  expect_refused(run(ruler + path("absent.json")), 1, {"absent.json"});
}

// The same weights with a longer context say the same: nothing but the context's own number ends there.
TEST_F(Cli, RulerGoesPastTheContextWhenAsked) {
  fs::copy(model("qwen3"), dir_ / "short", fs::copy_options::recursive);
  std::stringstream config;
  config << std::ifstream(model("qwen3") + "/config.json").rdbuf();
  auto json = nlohmann::json::parse(config.str());
  json["max_position_embeddings"] = 128;
  write("short/config.json", json.dump());
  nlohmann::json haystack = {{"ids", nlohmann::json::array()}, {"questions", nlohmann::json::array()}};
  for (int i = 0; i < 300; i++) haystack["ids"].push_back(i * 37 % 200);
  for (int i = 0; i < 40; i++)
    haystack["questions"].push_back({{"question", {i, 7}}, {"answer", {i * 5 % 200}}});
  write("h.json", nlohmann::json{{"sets", {{{"task", "mine"}, {"haystacks", {haystack}}}}}}.dump());
  const std::string end =
      " --score exact --json --kv bf16,naive2:group=16 --sink 0 --recent 64 --haystacks " + path("h.json");
  const std::string shorter = "eval ruler " + path("short") + end;
  expect_refused(run(shorter), 2, {"303 tokens", "128 positions", "--beyond-context"});
  const Result past = run(shorter + " --beyond-context"),
               within = run("-q eval ruler " + model("qwen3") + end);
  ASSERT_EQ(past.code, 0) << past.err;
  EXPECT_NE(past.err.find("175 more than this model was trained for"), std::string::npos) << past.err;
  std::stringstream a(past.out), b(within.out);
  for (std::string x, y; std::getline(b, y);) {
    ASSERT_TRUE(std::getline(a, x));
    auto own = nlohmann::json::parse(x), other = nlohmann::json::parse(y);
    EXPECT_EQ(own["context"], 128);
    EXPECT_EQ(own["beyond_context"], true);
    EXPECT_FALSE(other.contains("beyond_context"));
    for (const char* key : {"context", "beyond_context", "run"}) own.erase(key), other.erase(key);
    EXPECT_EQ(own, other);
  }
}

TEST_F(Cli, RetrievalJudgesRefuseBadInput) {
  for (const std::string judge : {"eval ruler ", "eval needle "}) {
    const std::string start = judge + model("qwen3");
    expect_refused(run(start + " --task niah_7"), 2,
                   {"niah_7", judge == "eval ruler " ? "there are ruler, single" : "there are single",
                    "niah_multikey_3", "multi-query"});
    expect_refused(run(start + " --task single:haystack=hay"), 2, {"hay", "noise, essay, needles"});
    expect_refused(run(start + " --task single:keys=emoji"), 2, {"emoji", "word, number, uuid"});
    expect_refused(run(start + " --task single --length 999999999"), 2,
                   {"999999999", "512 positions", "--beyond-context"});
    expect_refused(run(start + " --task single --length 999999999 --beyond-context"), 1, {"would fit"});
    expect_refused(run(start + " --task ruler:keys=uuid"), 2, {"ruler:keys=uuid", "one task"});
    expect_refused(run(start + " --task single"), 1, {"tokenizer", "--haystacks"});
  }
  const std::string ruler = "eval ruler " + model("qwen3") + " --task single --length 513";
  for (const std::string flag : {"", " --beyond-context"}) {
    const Result r = run(ruler + flag + " --write-tokens " + path("t.npy"));
    expect_refused(r, 2, {"--write-tokens", "512 positions", "give --length 512 or less"});
    EXPECT_EQ(r.err.find("--beyond-context"), std::string::npos) << "which would not help: " << r.err;
  }
  // Haystacks that are only written fit in any memory; what is missed then is the tokenizer.
  expect_refused(
      run("eval ruler " + model("qwen3") +
          " --task single --length 999999999 --beyond-context --write-haystacks " + path("h.json")),
      1, {"tokenizer"});
  expect_refused(run("eval needle " + model("qwen3") + " --task ruler"), 2, {"one task", "'ruler'"});
  expect_refused(run("eval needle " + model("qwen3") + " --task multi-query"), 2, {"single or multi-key"});
  expect_refused(run("eval needle " + model("qwen3") + " --task single,single"), 2, {"one task"});
  const std::string map = "eval needle " + model("qwen3") + " --depths 2 --task multi-key:n-keys=";
  for (const std::string n : {"100", "4", "1"})
    expect_refused(run(map + n), 2, {"n-keys=" + n, "here 2", "--depths " + n});
  expect_refused(run(map + "2"), 1, {"tokenizer"});
}

TEST_F(Cli, GenerateComparesTextsWithBf16) {
  write("p.json", "[[3, 5, 7], [11, 12, 13, 14], [2]]");
  const std::string start = "-q eval generate " + model("qwen3") + " --kv bf16,naive2:group=16 ";
  const std::string end =
      " --max-tokens 90 --sink 0 --recent 0 --ignore-eos --json --save " + path("t.jsonl");
  const Result r = run(start + "--prompts " + path("p.json") + end);
  ASSERT_EQ(r.code, 0) << r.err;
  const auto bf16 = nlohmann::json::parse(r.out.substr(0, r.out.find('\n')));
  EXPECT_EQ(bf16["judge"], "generate");
  EXPECT_EQ(bf16["tokens"], 270);
  EXPECT_EQ(bf16["same"], 3);
  EXPECT_EQ(bf16["run"]["text_tokens"], 8) << "of all prompts";
  EXPECT_EQ(bf16["agree"], 1.0);
  const auto naive = nlohmann::json::parse(r.out.substr(r.out.find('\n') + 1));
  EXPECT_EQ(naive["prompts"], 3);
  EXPECT_TRUE(naive.contains("collapsed"));
  std::stringstream saved;
  saved << std::ifstream(path("t.jsonl")).rdbuf();
  EXPECT_EQ(nlohmann::json::parse(saved.str().substr(0, saved.str().find('\n')))["tokens"].size(), 90u);
  EXPECT_EQ(run(start + "--prompts " + path("p.json") + end).out, r.out);
  const std::string pieces =
      start + "--tokens " + tokens(400) + " --pieces 2 --max-tokens 5 --prompt-tokens ";
  EXPECT_EQ(run(pieces + "390").code, 0);
  expect_refused(run(pieces + "20"), 2, {"naive2", "position 384", "has 20", "366 or more", "--max-tokens"});
  write("empty.txt", "\n \n");
  expect_refused(run(start + "--prompts " + path("empty.txt")), 2, {"empty.txt", "no prompt"});
  write("words.txt", "Once upon a time\n");
  expect_refused(run(start + "--prompts " + path("words.txt")), 1, {"tokenizer"});
  write("bad.json", "[3, 4]");
  expect_refused(run(start + "--prompts " + path("bad.json")), 1, {"bad.json", "prompt 0", "array"});
  expect_refused(run(start), 2, {"--prompts"});
  expect_refused(run(start + "--prompts " + path("p.json") + " --max-tokens 99999999"), 2,
                 {"99999999", "context"});
}

TEST_F(Cli, AttendNormsAndReport) {
  const std::string judge = " " + model("qwen3") + " --json --tokens " + tokens(300);
  const Result attend = run("-q eval attend" + judge + " --kv bf16,quarot2 --sink 64 --recent 64");
  ASSERT_EQ(attend.code, 0) << attend.err;
  std::stringstream lines(attend.out);
  int n_attend = 0;
  for (std::string line; std::getline(lines, line); n_attend++) {
    const auto j = nlohmann::json::parse(line);
    EXPECT_EQ(j["judge"], "attend");
    EXPECT_NE(j["run"]["command"].get<std::string>().find("--kv bf16,quarot2"), std::string::npos);
    EXPECT_EQ(j["run"]["text_tokens"], 300);
  }
  EXPECT_GT(n_attend, 2);
  const Result norms = run("-q eval norms" + judge);
  ASSERT_EQ(norms.code, 0) << norms.err;
  const Result kld =
      run("-q eval kld" + judge + " --kv bf16,naive2 --sink 64 --recent 64 --window 250 --stride 50");
  ASSERT_EQ(kld.code, 0) << kld.err;
  write("attend.jsonl", attend.out);
  write("others.jsonl", norms.out + kld.out);
  const std::string files = path("attend.jsonl") + " " + path("others.jsonl");
  const Result report = run("-q eval report " + files + " --out " + path("page.html"));
  ASSERT_EQ(report.code, 0) << report.err;
  std::stringstream page;
  page << std::ifstream(path("page.html")).rdbuf();
  for (const char* text : {"quarot2", "naive2", "<svg", "Token norms", "Where a method loses", "</html>"})
    EXPECT_NE(page.str().find(text), std::string::npos) << text;

  write("wrong.jsonl", kld.out + "{\"judge\": \"crystal ball\"}\n");
  expect_refused(run("-q eval report " + path("wrong.jsonl") + " --out " + path("no.html")), 1,
                 {"wrong.jsonl", "line 3", "crystal ball", "needle"});
  EXPECT_FALSE(fs::exists(path("no.html")));
  expect_refused(run("-q eval report " + files + " --out " + path("attend.jsonl") + "/page.html"), 1,
                 {"cannot write", "page.html"});
  expect_refused(run("-q eval report --out " + path("no.html")), 2, {"--model", "--json"});
  expect_refused(run("-q eval report " + path("absent.jsonl") + " --out " + path("no.html")), 1,
                 {"absent.jsonl"});
  expect_refused(run("-q eval attend " + model("qwen3") + " --kv quarot2 --tokens " + tokens(300)), 2,
                 {"448", "300"});
  expect_refused(run("-q eval norms " + model("qwen3") + " --tokens " + tokens(9)), 2, {"32", "9"});
}

TEST_F(Cli, BenchOfASmallModel) {
  const Result r = run("bench linear decode prefill batch " + model("qwen3") +
                       " --depth 0,70 --prompt 5 --steps 1 --repeat 1 --batch 3 --kv bf16,quarot2 --json");
  ASSERT_EQ(r.code, 0) << r.err;
  std::stringstream lines(r.out);
  std::map<std::string, int> n;
  for (std::string line; std::getline(lines, line);) {
    const nlohmann::json row = nlohmann::json::parse(line);
    n[row["part"]]++;
    if (row["part"] == "linear") {
      EXPECT_LT(row["error"], 1e-2) << line;
    }
    if (row["part"] == "decode") {
      EXPECT_EQ(row["error"], 0) << "a prompt's bits are those of steps: " << line;
    }
  }
  EXPECT_GE(n["linear"], 12);
  for (const char* part : {"decode", "prefill", "batch"}) EXPECT_EQ(n[part], 4) << part;
  EXPECT_EQ(run("bench attend --depth 64 --repeat 1 >/dev/full").code, 1) << "what was lost is said";
}

TEST_F(Cli, AbsorbingIsSaidAndRefusedWhereThereIsNothingToAbsorb) {
  const Result r = run("bench decode " + model("qwen3") +
                       " --depth 70 --prompt 5 --steps 1 --repeat 1 --kv bf16,quarot2,bf16 --absorb --json");
  ASSERT_EQ(r.code, 0) << r.err;
  std::stringstream lines(r.out);
  std::vector<bool> absorbed;
  for (std::string line; std::getline(lines, line);) {
    const nlohmann::json row = nlohmann::json::parse(line);
    if (row["part"] != "decode") continue;
    absorbed.push_back(row["name"].get<std::string>().find("absorbed") != std::string::npos);
    EXPECT_EQ(row["error"], 0) << "a prompt's bits are those of steps: " << line;
  }
  EXPECT_EQ(absorbed, (std::vector{false, true, false})) << r.out;
  expect_refused(run("bench decode " + model("qwen3") + " --depth 70 --kv bf16,naive2 --absorb"), 2,
                 {"bf16", "nothing to absorb", "quarot2"});
  expect_refused(run("bench attend --absorb"), 2, {"--absorb", "decode"});

  const std::string ask = "run " + speaking() + " --raw -p abc -n 3 --ignore-eos ";
  const Result text = run(ask + "--kv quarot2 --absorb");
  ASSERT_EQ(text.code, 0) << text.err;
  EXPECT_NE(text.err.find("absorbed"), std::string::npos) << text.err;
  expect_refused(run(ask + "--kv bf16 --absorb"), 2, {"bf16", "nothing to absorb"});
}

// Times are not judged; that every part compares with its specification before it times is.
TEST_F(Cli, BenchOfKernelsComparesAndPrintsOneObjectPerRow) {
  const Result r = run("bench attend demote " + model("qwen3") +
                       " --depth 1,777 --batch 1,2 --rows 1,70 --kv bf16,quarot2,omni2 --repeat 1 --json");
  ASSERT_EQ(r.code, 0) << r.err;
  std::stringstream lines(r.out);
  int n_attend = 0, n_demote = 0;
  for (std::string line; std::getline(lines, line);) {
    const nlohmann::json row = nlohmann::json::parse(line);
    EXPECT_GT(row["median_s"], 0) << line;
    n_demote += row["part"] == "demote";
    if (row["part"] != "attend") continue;
    n_attend++;
    ASSERT_TRUE(row.contains("error")) << line;
    EXPECT_LT(row["error"], 1e-4) << line;
    EXPECT_LE(row["rows"], row["tokens"]) << line;
    EXPECT_GT(row["bytes"], 0) << line;
  }
  EXPECT_EQ(n_attend, 2 * 2 * 2 * 3);
  EXPECT_EQ(n_demote, 2);
}

TEST_F(Cli, BenchRefusesBadInputBeforeItMeasures) {
  expect_refused(run("bench nosuchpart"), 2, {"nosuchpart", "attend"});
  expect_refused(run("bench no/such.gguf"), 1, {"no/such.gguf"});
  expect_refused(run("bench nosuchpart " + model("qwen3")), 2, {"nosuchpart", "attend"});
  expect_refused(run("bench limits --kv kivi2"), 2, {"--kv", "attend"});
  expect_refused(run("bench linear demote --depth 500"), 2, {"--depth", "linear, demote"});
  expect_refused(run("bench attend --depth 0"), 2, {"--depth"});
  expect_refused(run("bench attend --depth 67108864 --batch 4096"), 1, {"67108864", "free", "--batch"});
  expect_refused(run("bench decode " + model("qwen3") + " --depth 500"), 2, {"--steps", "512 positions"});
  expect_refused(run("bench prefill " + model("qwen3") + " --depth 1"), 2, {"--prompt", "512 positions"});
  expect_refused(run("bench attend decode"), 2, {"decode", "MODEL"});
  expect_refused(run("bench attend " + model("qwen3") + " another"), 2, {"another", "attend"});
  expect_refused(run("bench attend --batch 0"), 2, {"--batch"});
  expect_refused(run("bench attend --rows 0"), 2, {"--rows"});
  expect_refused(run("bench attend --depth -1"), 2, {"--depth"});
  expect_refused(run("bench limits --pin --threads 1000"), 2, {"--pin", "1000"});
  expect_refused(run("bench attend --pin --device reference"), 2, {"pinned", "reference"});
}

TEST_F(Cli, TunePrintsACommandThatRuns) {
  const std::string judge =
      " " + model("qwen3") + " --tokens " + tokens(500) + " --short 420 --long 500 --rounds 1";
  const Result r = run("-q tune" + judge + " --bits 4 --kv quarot2");
  ASSERT_EQ(r.code, 0) << r.err;
  const size_t command = r.out.find("kv2 run ");
  ASSERT_NE(command, std::string::npos) << r.out;
  const size_t begin = r.out.find("--kv", command);
  const std::string options = r.out.substr(begin, r.out.find('\n', begin) - begin);
  const Result plan = run("plan " + model("qwen3") + " --ctx 512 --json " + options);
  ASSERT_EQ(plan.code, 0) << options << plan.err;
  EXPECT_LE(nlohmann::json::parse(plan.out)["history_bits"].get<double>(), 4.0);
  expect_refused(run("-q tune" + judge + " --bits 0.5 --kv quarot2"), 2, {"0.5", "least"});
  expect_refused(run("-q tune" + judge + " --kv oscar2"), 2, {"kv2 calibrate"});
  const Result naive = run("-q tune" + judge + " --kv naive2");  // its searched clips need a calibration
  EXPECT_EQ(naive.code, 0) << naive.err;
}

}  // namespace
