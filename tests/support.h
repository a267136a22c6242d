// SPDX-License-Identifier: Apache-2.0
// What the end-to-end tests share: fixtures of the repository, random models made on the spot, and a small
// driver that feeds tokens to a model in pieces and keeps every row of logits.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "cache/kv_cache.h"
#include "model/model.h"

namespace kv2::test {

std::string fixture(const std::string& name);  // path below tests/fixtures

/// reference.safetensors of a fixture.
struct Reference {
  std::vector<int32_t> tokens;
  std::vector<float> logits, logits_kv16;  // [n, vocab]
};
Reference load_reference(const std::string& directory);

/// One tensor of a safetensors file as values of type T (its dtype must have that size).
template <class T>
std::vector<T> read_values(const TensorFile& file, const std::string& name) {
  const TensorInfo* t = file.find(name);
  if (t == nullptr || t->bytes != t->n_elements() * sizeof(T)) throw std::runtime_error("no tensor " + name);
  std::vector<T> out(t->n_elements());
  const auto raw = file.raw(*t);
  std::copy(raw.begin(), raw.end(), reinterpret_cast<std::byte*>(out.data()));
  return out;
}

/// A random Qwen 3 (QK-norm) or Qwen 2 (biases) checkpoint, written to a temporary directory.
struct RandomModel {
  std::string architecture = "Qwen3ForCausalLM";
  int n_layers = 3, hidden = 96, n_heads = 4, n_kv_heads = 2, head_dim = 64, intermediate = 160, vocab = 97;
  uint64_t seed = 1;
};
std::string write_random_model(const RandomModel& m);
std::vector<int32_t> random_tokens(int64_t n, int vocab, uint64_t seed);

/// A cache over a model, and sequences that are fed in pieces.
class Runner {
 public:
  Runner(Model& model, const CacheSpec& spec, CacheCapacity capacity);

  KvCache& cache() { return *cache_; }
  SequenceId open();
  /// Feeds tokens in forwards of at most `chunk` rows; logits of every row, [n, vocab].
  std::vector<float> feed(SequenceId sequence, std::span<const int32_t> tokens, int64_t chunk,
                          int64_t full_until);

  struct Piece {
    SequenceId sequence;
    std::span<const int32_t> tokens;
  };
  /// One forward of several sequences; logits of every row.
  std::vector<float> step(const std::vector<Piece>& pieces, int64_t full_until);

 private:
  Model& model_;
  std::unique_ptr<KvCache> cache_;
};

/// Canonical bytes of every head page that the next query of the sequence reads, by the rule of visibility;
/// rows that were not written yet are left out. A page that should be held and is not fails the test.
struct PageBytes {
  std::vector<std::vector<std::byte>> full,
      packed;  // in order of page, layer, head; each empty where the rule says so
  bool operator==(const PageBytes&) const = default;
};
PageBytes page_bytes(const KvCache& cache, SequenceId sequence);

}  // namespace kv2::test
