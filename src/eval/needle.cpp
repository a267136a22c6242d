// SPDX-License-Identifier: Apache-2.0
#include "eval/needle.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/check.h"

namespace kv2 {
namespace {

/// A haystack, and the depth that each of its questions belongs to.
struct Asked {
  Haystack haystack;
  std::vector<size_t> depth_of;
};

std::vector<double> depths_of(int n) {
  if (n < 1) throw_error(ErrorCode::BadArgument, "{} depths: one is needed at least", n);
  if (n == 1) return {0.5};
  std::vector<double> out;
  for (int i = 0; i < n; i++) out.push_back(static_cast<double>(i) / (n - 1));
  return out;
}

/// All haystacks of one length.
std::vector<Asked> make_haystacks(const HaystackWriter& writer, const NeedlePlan& plan, int64_t length,
                                  const std::vector<double>& depths) {
  HaystackRequest request{.task = plan.task,
                          .length = length,
                          .answer_tokens = plan.answer_tokens,
                          .max_questions = static_cast<int>(depths.size()),
                          .depths = {}};
  std::vector<Asked> out;
  const auto n_depths = static_cast<int64_t>(depths.size());
  for (int sample = 0; sample < plan.samples; sample++) {
    if (plan.task.shape == TaskShape::MultiKey) {
      request.task.n_keys = static_cast<int>(n_depths);
      request.depths = depths;
      Haystack h = writer.make(request, plan.seed, sample);
      std::vector<size_t> order(h.questions.size()), depth_of(h.questions.size());
      std::iota(order.begin(), order.end(), size_t{0});
      std::sort(order.begin(), order.end(),
                [&](size_t a, size_t b) { return h.questions[a].depth < h.questions[b].depth; });
      for (size_t i = 0; i < order.size(); i++) depth_of[order[i]] = i;
      out.push_back({std::move(h), std::move(depth_of)});
      continue;
    }
    for (int64_t d = 0; d < n_depths; d++) {
      request.depths = {depths[d]};
      out.push_back({writer.make(request, plan.seed, sample * n_depths + d), {static_cast<size_t>(d)}});
    }
  }
  return out;
}

std::vector<NeedleCell> judge(RetrievalRunner& runner, const std::vector<Asked>& asked, size_t n_depths,
                              Progress& progress) {
  std::vector<NeedleCell> cells(n_depths);
  std::vector<double> substring(n_depths);
  bool measured = true;
  for (const Asked& a : asked) {
    const std::vector<RetrievalScore> scores = runner.ask(a.haystack, progress);
    for (size_t i = 0; i < scores.size(); i++) {
      NeedleCell& cell = cells[a.depth_of[i]];
      cell.questions++;
      cell.exact += scores[i].exact;
      substring[a.depth_of[i]] += scores[i].substring;
      measured &= scores[i].substring >= 0;
    }
  }
  for (size_t d = 0; d < n_depths; d++) {
    const auto n = static_cast<double>(cells[d].questions);
    cells[d].exact /= n;
    cells[d].substring = measured ? substring[d] / n : -1;
  }
  return cells;
}

}  // namespace

void require_depth_task(const RetrievalTask& task) {
  const bool shape = task.shape == TaskShape::Single || task.shape == TaskShape::MultiKey;
  if (!shape || task.haystack == HaystackKind::Needles)
    throw_error(ErrorCode::BadArgument,
                "a map of depths needs the task single or multi-key in noise or an essay, found {}",
                task.text());
}

std::vector<NeedleCell> measure_needles(Model& model, const std::vector<CacheSpec>& specs,
                                        const Calibration* calibration, const HaystackWriter& writer,
                                        const NeedlePlan& plan, const RetrievalOptions& options,
                                        const Tokenizer* tokenizer,
                                        const std::function<void(std::span<const NeedleCell>)>& on_row) {
  require_depth_task(plan.task);
  const bool shared = plan.task.shape == TaskShape::MultiKey;
  if (plan.samples < 1)
    throw_error(ErrorCode::BadArgument, "{} samples: one is needed at least", plan.samples);
  const std::vector<double> depths = depths_of(plan.n_depths);
  int64_t total = 0;
  for (const int64_t length : plan.lengths) {
    if (length > model.config().context)
      throw_error(ErrorCode::BadArgument, "length {} is past the model's context of {}", length,
                  model.config().context);
    total += length * plan.samples * (shared ? 1 : plan.n_depths);
  }
  RetrievalOptions together = options;
  together.most_questions = shared ? plan.n_depths : 1;
  Progress progress("needle", total * static_cast<int64_t>(specs.size()));
  std::vector<NeedleCell> out;
  for (const int64_t length : plan.lengths) {
    const std::vector<Asked> asked = make_haystacks(writer, plan, length, depths);
    for (const CacheSpec& spec : specs) {
      RetrievalRunner runner(model, spec, calibration, length, together, tokenizer);
      std::vector<NeedleCell> row = judge(runner, asked, depths.size(), progress);
      for (size_t d = 0; d < row.size(); d++) {
        NeedleCell& c = row[d];
        c.method = spec.method_text();
        c.history_bits = runner.plan().layout.history_bits();
        c.task = plan.task.text();
        c.length = length;
        c.depth = depths[d];
        c.sink = spec.sink_tokens;
        c.recent = spec.recent_tokens;
        c.prefill = spec.prefill == PrefillPolicy::Exact ? "exact" : "windowed";
        c.seed = plan.seed;
      }
      if (on_row) on_row(row);
      out.insert(out.end(), row.begin(), row.end());
    }
  }
  return out;
}

std::string to_json(const NeedleCell& c) {
  nlohmann::ordered_json j;
  j["judge"] = "needle";
  j["method"] = c.method;
  j["history_bits"] = c.history_bits;
  j["task"] = c.task;
  j["length"] = c.length;
  j["depth"] = c.depth;
  j["questions"] = c.questions;
  j["exact"] = c.exact;
  if (c.substring >= 0) j["substring"] = c.substring;
  j["sink"] = c.sink;
  j["recent"] = c.recent;
  j["prefill"] = c.prefill;
  j["seed"] = c.seed;
  return j.dump();
}

std::string to_table(const std::vector<NeedleCell>& cells) {
  std::vector<std::string> methods;
  std::vector<int64_t> lengths;
  std::vector<double> depths;
  const auto add = [](auto& list, const auto& value) {
    if (std::find(list.begin(), list.end(), value) == list.end()) list.push_back(value);
  };
  for (const NeedleCell& c : cells) add(methods, c.method), add(lengths, c.length), add(depths, c.depth);
  std::string out;
  for (const std::string& method : methods) {
    out += fmt::format("{}\n{:>7}", method, "depth");
    for (const int64_t length : lengths) out += fmt::format(" {:>13}", length);
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
                       cells.front().questions == 1 ? "" : "s", cells.front().task);
  return out;
}

}  // namespace kv2
