// SPDX-License-Identifier: Apache-2.0
// The program from outside: bad input gives one clear line on stderr, the right exit code and nothing
// half-written; good input gives data on stdout. What it judges and measures: cli_judges_test.cpp and
// cli_bench_test.cpp.
#include <fcntl.h>
#include <sys/stat.h>

#include "cli.h"

namespace kv2::test {
namespace {

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

}  // namespace
}  // namespace kv2::test
