// SPDX-License-Identifier: Apache-2.0
// `kv2 eval` and `kv2 tune` from outside: what they print, and what they refuse.
#include "cli.h"

namespace kv2::test {
namespace {

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
}  // namespace kv2::test
