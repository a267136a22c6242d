// SPDX-License-Identifier: Apache-2.0
#include "apps/retrieval_options.h"

#include <fmt/format.h>

#include "base/check.h"
#include "base/log.h"
#include "eval/batch_feed.h"
#include "text/text_file.h"

namespace kv2::app {

void RetrievalFlags::add_to(CLI::App& app, TaskCount count) {
  eval.add_to(app, "bf16,quarot2");
  eval.add_schedule_to(app);
  const bool several = count == TaskCount::Several;
  tasks = {several ? std::string(kAllOfRuler) : "single"};
  std::string help = several ? "ruler (all of RULER's), or tasks" : "a task";
  help +=
      " with parameters: haystack=noise|essay|needles, keys= and values=word|number|uuid, n-keys=, "
      "n-values=, n-queries= ('multi-key:haystack=needles,keys=uuid,values=uuid')";
  for (const RetrievalTaskInfo& t : retrieval_tasks())
    help += fmt::format("\n  {}: {}", t.name, t.description);
  app.add_option("--task", tasks, help)->allow_extra_args(false)->type_name("TASK")->capture_default_str();
  app.add_option("--length", lengths,
                 "tokens, question and answer included: --length 4096,32768; default: 4096")
      ->delimiter(',');
  app.add_flag("--beyond-context", beyond_context,
               "run lengths past the context that the model was trained for, too");
  app.add_option("--words", words,
                 "words of keys and values; default: words.txt of the model's folder, or built in");
  app.add_option("--essay", essay,
                 "a text file whose sentences fill essay haystacks; default: made-up sentences");
  app.add_option("--score", score,
                 "exact: every answer token is the arg max; both: also substring, RULER's, of generated text")
      ->check(CLI::IsMember({"both", "exact"}));
  app.add_option("--answer-tokens", answer_tokens, "most tokens of a generated answer")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  app.add_option("--chunk", chunk, "tokens per forward")
      ->check(CLI::Range(1, 1 << 14))
      ->capture_default_str();
  add_seed(app, seed, "of the haystacks")->capture_default_str();
}

std::vector<RetrievalTask> RetrievalFlags::parsed_tasks() const {
  std::vector<RetrievalTask> out;
  for (const std::string& text : split_methods(tasks)) {
    const std::vector<RetrievalTask> named = tasks_named(text);
    out.insert(out.end(), named.begin(), named.end());
  }
  return out;
}

std::string RetrievalFlags::one_task(const char* judge) const {
  const std::vector<std::string> texts = split_methods(tasks);
  if (texts.size() != 1 || texts[0].starts_with(kAllOfRuler))
    throw_error(ErrorCode::BadArgument, "eval {} judges one task, found '{}'; eval ruler takes several",
                judge, fmt::join(texts, ","));
  return texts[0];
}

std::vector<int64_t> RetrievalFlags::parsed_lengths(Model& model, const std::vector<CacheSpec>& specs) const {
  const int64_t context = model.config().context;
  if (lengths.empty()) return {std::min<int64_t>(4096, context)};
  for (const int64_t n : lengths) {
    if (n < 1)
      throw_error(ErrorCode::BadArgument, "--length {}: this model reads 1 to {} tokens", n, context);
    require_in_context(fmt::format("--length {}", n), n, model.config(), past_context());
    if (n <= context) continue;
    for (const CacheSpec& spec : specs)
      (void)capacity_that_fits(model, spec, {.context_tokens = n, .n_sequences = 2, .chunk_tokens = chunk},
                               2);
  }
  return lengths;
}

HaystackWriter RetrievalFlags::writer(const Session& session) const {
  const Tokenizer& tokenizer =
      session.require_tokenizer("haystacks of token ids can be given with eval ruler --haystacks FILE.json");
  WordList list = WordList::choose(words, eval.model.model);
  log_info(fmt::format("words        {} of {}", list.words.size(), list.source));
  std::vector<std::string> sentences;
  if (!essay.empty()) {
    sentences = sentences_of(read_text_file(essay, size_t{1} << 30), essay);
    log_info(fmt::format("essay        {} sentences of {}", sentences.size(), essay));
  }
  return HaystackWriter(tokenizer, std::move(list), std::move(sentences));
}

RetrievalOptions RetrievalFlags::options(int most_questions) const {
  return {.chunk_tokens = chunk,
          .answer_tokens = substring() ? answer_tokens : 0,
          .most_questions = most_questions,
          .past_context = past_context()};
}

}  // namespace kv2::app
