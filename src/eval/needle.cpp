// SPDX-License-Identifier: Apache-2.0
#include "eval/needle.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/check.h"
#include "base/without_repeats.h"

namespace kv2 {
namespace {

std::vector<double> depths_of(int n) {
  if (n < 1) throw_error(ErrorCode::BadArgument, "{} depths: one is needed at least", n);
  if (n == 1) return {0.5};
  std::vector<double> out;
  for (int i = 0; i < n; i++) out.push_back(static_cast<double>(i) / (n - 1));
  return out;
}

/// The depths' needles share a haystack.
bool shared(const RetrievalTask& task) {
  return task.shape == TaskShape::MultiKey;
}

/// Which depth each question of a shared haystack is about: the writer mixes them.
std::vector<size_t> depths_in_order(const Haystack& h) {
  std::vector<size_t> order(h.questions.size()), depth_of(h.questions.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return h.questions[a].depth < h.questions[b].depth; });
  for (size_t i = 0; i < order.size(); i++) depth_of[order[i]] = i;
  return depth_of;
}

NeedleSet make_set(const HaystackWriter& writer, const NeedlePlan& plan, int64_t length) {
  RetrievalTask task = plan.task;
  if (shared(task)) task.n_keys = plan.n_depths;
  NeedleSet out{{.task = task.text(), .length = length, .seed = plan.seed, .haystacks = {}, .made = true},
                depths_of(plan.n_depths),
                {}};
  HaystackRequest request{.task = task,
                          .length = length,
                          .answer_tokens = plan.answer_tokens,
                          .max_questions = plan.n_depths,
                          .depths = {}};
  for (int sample = 0; sample < plan.samples; sample++) {
    if (shared(plan.task)) {
      request.depths = out.depths;
      out.haystacks.push_back(writer.make(request, plan.seed, sample));
      out.depth_of.push_back(depths_in_order(out.haystacks.back()));
      continue;
    }
    for (int d = 0; d < plan.n_depths; d++) {
      request.depths = {out.depths[d]};
      out.haystacks.push_back(writer.make(request, plan.seed, sample * plan.n_depths + d));
      out.depth_of.push_back({static_cast<size_t>(d)});
    }
  }
  return out;
}

std::vector<NeedleCell> judge(RetrievalRunner& runner, const NeedleSet& set, Progress& progress) {
  std::vector<std::vector<AnswerScore>> answers(set.depths.size());
  for (size_t h = 0; h < set.haystacks.size(); h++) {
    const std::vector<AnswerScore> own = runner.ask(set.haystacks[h], progress);
    for (size_t q = 0; q < own.size(); q++) answers[set.depth_of[h][q]].push_back(own[q]);
  }
  std::vector<NeedleCell> cells(set.depths.size());
  for (size_t d = 0; d < cells.size(); d++) {
    cells[d].average(answers[d]);
    cells[d].depth = set.depths[d];
  }
  return cells;
}

void require_shape_of_map(const RetrievalTask& task) {
  const bool shape = task.shape == TaskShape::Single || task.shape == TaskShape::MultiKey;
  if (!shape || task.haystack == HaystackKind::Needles)
    throw_error(ErrorCode::BadArgument,
                "a map of depths needs the task single or multi-key in noise or an essay, found {}",
                task.text());
}

}  // namespace

RetrievalTask depth_task(std::string_view text, int n_depths) {
  const RetrievalTask task = RetrievalTask::parse(text);
  require_shape_of_map(task);
  if (shared(task) && text.find("n-keys=") != text.npos && task.n_keys != n_depths)
    throw_error(ErrorCode::BadArgument,
                "task '{}': a map of depths has a key for each depth, here {}; leave n-keys out, or give "
                "--depths {}",
                text, n_depths, task.n_keys);
  return task;
}

std::vector<NeedleSet> make_needles(const HaystackWriter& writer, const NeedlePlan& plan) {
  require_shape_of_map(plan.task);
  if (plan.samples < 1)
    throw_error(ErrorCode::BadArgument, "{} samples: one is needed at least", plan.samples);
  std::vector<NeedleSet> out;
  for (const int64_t length : without_repeats(plan.lengths)) out.push_back(make_set(writer, plan, length));
  return out;
}

std::vector<NeedleCell> measure_needles(Model& model, const std::vector<CacheSpec>& specs,
                                        const Calibration* calibration, const std::vector<NeedleSet>& sets,
                                        const RetrievalOptions& options, const Tokenizer* tokenizer,
                                        const std::function<void(std::span<const NeedleCell>)>& on_row) {
  int64_t total = 0;
  for (const NeedleSet& set : sets) {
    require_in_context(set.task, set.length, model.config(), options.past_context);
    require_history(set, specs);
    total += set.n_tokens();
  }
  Progress progress("needle", total * static_cast<int64_t>(specs.size()));
  std::vector<NeedleCell> out;
  for (const NeedleSet& set : sets) {
    RetrievalOptions together = options;
    together.most_questions = set.most_questions();
    for (const CacheSpec& spec : specs) {
      RetrievalRunner runner(model, spec, calibration, set.length, together, tokenizer);
      std::vector<NeedleCell> row = judge(runner, set, progress);
      for (NeedleCell& cell : row) cell.describe(spec, runner.plan(), set, model.config());
      if (on_row) on_row(row);
      out.insert(out.end(), row.begin(), row.end());
    }
  }
  return out;
}

std::string to_json(const NeedleCell& c) {
  nlohmann::ordered_json j;
  j["judge"] = "needle";
  c.add_to(j);
  j["depth"] = c.depth;
  return j.dump();
}

std::string to_table(const std::vector<NeedleCell>& cells) {
  std::vector<std::string> methods;
  std::vector<int64_t> lengths;
  std::vector<double> depths;
  const auto add = [](auto& list, const auto& value) {
    if (std::find(list.begin(), list.end(), value) == list.end()) list.push_back(value);
  };
  std::vector<std::string> length_texts;
  bool any_beyond = false;
  for (const NeedleCell& c : cells) {
    add(methods, c.method), add(lengths, c.length), add(depths, c.depth);
    add(length_texts, c.length_text());
    any_beyond |= c.beyond_context;
  }
  std::string out;
  for (const std::string& method : methods) {
    out += fmt::format("{}\n{:>7}", method, "depth");
    for (const std::string& length : length_texts) out += fmt::format(" {:>13}", length);
    for (const double depth : depths) {
      out += fmt::format("\n{:>6.1f}%", 100 * depth);
      for (const int64_t length : lengths)
        for (const NeedleCell& c : cells) {
          if (c.method != method || c.length != length || c.depth != depth) continue;
          const std::string text = c.substring < 0
                                       ? fmt::format("{:.0f}", 100 * c.exact)
                                       : fmt::format("{:.0f} / {:.0f}", 100 * c.exact, 100 * c.substring);
          out += fmt::format(" {:>13}", text);
        }
    }
    out += "\n\n";
  }
  const bool substring = !cells.empty() && cells.front().substring >= 0;
  if (!cells.empty())
    out += fmt::format("{} in percent, {} question{} a cell, task {}\n",
                       substring ? "exact / substring" : "exact", cells.front().questions,
                       cells.front().questions == 1 ? "" : "s", cells.front().task) +
           star_note(any_beyond, cells.front().context);
  return out;
}

}  // namespace kv2
