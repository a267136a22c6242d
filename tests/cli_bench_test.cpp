// SPDX-License-Identifier: Apache-2.0
// `kv2 bench` from outside: what it compares before it measures, and what it refuses. Times are not judged.
#include "base/file.h"
#include "cli.h"

namespace kv2::test {
namespace {

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
  EXPECT_NE(r.err.find("absorbed     V's way back from the basis of quarot2"), std::string::npos) << r.err;
  expect_refused(run("bench decode " + model("qwen3") + " --depth 70 --kv bf16,naive2 --absorb"), 2,
                 {"bf16", "nothing to absorb", "quarot2"});
  expect_refused(run("bench attend --absorb"), 2, {"--absorb", "decode"});

  const std::string ask = "run " + speaking() + " --raw -p abc -n 3 --ignore-eos ";
  const Result text = run(ask + "--kv quarot2 --absorb");
  ASSERT_EQ(text.code, 0) << text.err;
  EXPECT_NE(text.err.find("absorbed"), std::string::npos) << text.err;
  expect_refused(run(ask + "--kv bf16 --absorb"), 2, {"bf16", "nothing to absorb"});
}

TEST_F(Cli, AbsorbingIntoCodedWeightsIsRefusedBeforeAnythingIsMeasured) {
  const std::string coded = user_cache_dir() + "/models/SmolLM2-135M-Instruct.Q4_1.gguf";
  if (!fs::exists(coded)) GTEST_SKIP() << coded << " is not there: scripts/fetch_models";
  const std::string small = " --depth 64 --prompt 8 --steps 1 --repeat 1 ";
  for (const char* part : {"decode", "profile"})
    expect_refused(run(std::string("bench ") + part + " " + coded + small + "--kv bf16,quarot2 --absorb"), 1,
                   {"layer 0", "attn_output", "Q4_1", "--linears bf16", "--device cuda:0"});
  expect_refused(run("run " + coded + " -p a -n 1 --kv quarot2 --absorb"), 1, {"Q4_1", "--linears bf16"});
  const Result r = run("bench profile " + coded + small + "--kv quarot2 --absorb --linears bf16");
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_NE(r.out.find("quarot2, absorbed depth 64"), std::string::npos) << r.out;
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

}  // namespace
}  // namespace kv2::test
