// SPDX-License-Identifier: Apache-2.0
// kv2 bench: what its parts share. A part makes rows; a row is one measured thing with its bytes and, where a
// limit of the machine is known, the share of it. Times are medians over repeats, spread is (largest −
// smallest) ÷ median: on a shared machine the smallest time is the better number, so both are there.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "apps/options.h"

namespace kv2::app {

struct BenchOptions {
  ModelOptions model;
  CacheOptions cache;
  std::vector<std::string> words;  // as given: parts, and perhaps the model
  std::vector<std::string> parts, kv;
  std::vector<int64_t> depths;
  std::vector<int> batches, rows;  // empty: not given
  int repeats = 5, steps = 16, prompt = 512;
  bool json = false, random_cache = false, absorb = false;

  bool wants(const std::string& part) const;
  /// Of `batch` and `profile`.
  std::vector<int> model_batches() const { return batches.empty() ? std::vector{1, 8} : batches; }
  /// Of --kv, or else of `defaults`.
  std::vector<CacheSpec> specs(const std::string& defaults) const;
};

/// What attention, linears and demotion are measured at: the model's shape; without one on a CPU those of
/// SmolLM2-135M and of needle-15m, on a GPU that of an 8B model, at depths where a cache matters.
struct BenchShape {
  std::string name;
  KvShape kv;
  int hidden, intermediate, vocab;
  std::vector<int64_t> depths;
};
std::vector<BenchShape> bench_shapes(const BenchOptions& o);

/// Seconds of each repeat.
struct Times {
  std::vector<double> seconds;  // sorted
  double cores = 0;             // CPU time ÷ time: what a busy machine gave; 0: not measured

  static Times of(std::vector<double> seconds);
  double median() const { return seconds[seconds.size() / 2]; }
  double best() const { return seconds.front(); }
  double spread() const { return (seconds.back() - seconds.front()) / median(); }
};
/// Runs once to warm up, then `repeats` times.
Times time_of(int repeats, const std::function<void()>& run);
/// The same for ops of a backend: by the device's own clock, its caches cold before each, where it has one
/// (DeviceClock), else by the host's, with the wait for the last op.
Times time_on(Backend& backend, int repeats, const std::function<void()>& ops);

/// Multiply-adds, each counted as 2, by the kind of instruction that does them.
struct Arithmetic {
  double int8 = 0, bf16 = 0, f32 = 0;
  double total() const { return int8 + bf16 + f32; }
};

struct BenchRow {
  std::string part, name, kv;  // kv: the method, where a row is of one
  Times times;
  double tokens = 0;      // of one repeat; 0: not a matter of tokens
  double bytes = 0;       // that one repeat must read
  Arithmetic operations;  // of one repeat
  double error = -1;      // against the reference, relative; -1: not compared
  std::string check;      // what was compared, for people
  std::vector<std::pair<const char*, int64_t>> shape = {};  // for machines
};

/// Seconds that a row takes at least: its bytes at the speed of the level that holds them, its arithmetic at
/// the instructions' own peaks. The longer of the two bounds it. 0: not known.
struct Bound {
  const char* level = "memory";
  double reading = 0, arithmetic = 0;
  double seconds() const { return reading > arithmetic ? reading : arithmetic; }
  const char* what() const { return reading > arithmetic ? level : "arithmetic"; }
};

/// What the machine gave in this very call; 0: not measured.
struct BenchLimits {
  struct Level {
    const char* name;
    double holds, read;  // bytes, bytes per second of all threads
  };
  std::vector<Level> levels;  // smaller ones first
  Arithmetic peak;            // operations per second, all threads
  Bound of(const BenchRow& row) const;
};

/// What is in memory after a sequence was decoded at some depth, in bytes.
struct MemoryRow {
  std::string name;
  size_t resident, weights;  // of the process; as loaded
  size_t kv;  // what `kv2 plan` says for one sequence: pages, those of a chunk in bf16, tables, matrices
  size_t kv_tokens;  // the part of it that the tokens of the sequence are
};

/// Prints rows as they come: a table line or a JSON object.
class BenchReport {
 public:
  explicit BenchReport(bool json) : json_(json) {}
  void add(const BenchRow& row);
  void add_memory(const MemoryRow& row);
  BenchLimits limits;

 private:
  bool json_, any_ = false;
};

// Parts, each in a file of its own.
void bench_limits(const BenchOptions& o, BenchReport& report);
void bench_attend(const BenchOptions& o, BenchReport& report);
void bench_linear(const BenchOptions& o, BenchReport& report);
void bench_demote(const BenchOptions& o, BenchReport& report);
/// Throws where the model is none, or has no room for what is to be measured. Loads no weights.
void require_room(const BenchOptions& o);
/// decode, prefill and batch on the real model.
void bench_model(const BenchOptions& o, BenchReport& report);
/// One decode step at the deepest --depth with the last of --batch, operation by operation.
void bench_profile(const BenchOptions& o, BenchReport& report);

}  // namespace kv2::app
