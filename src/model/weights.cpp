// SPDX-License-Identifier: Apache-2.0
#include "model/weights.h"

#include <algorithm>
#include <atomic>
#include <unordered_set>

#include "base/check.h"
#include "base/log.h"
#include "formats/gguf.h"
#include "formats/weight_codes.h"
#include "model/arch.h"
#include "model/output_basis.h"

namespace kv2 {
namespace {

std::string shape_text(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

/// One tensor that the model needs.
struct Wanted {
  std::string name;
  std::vector<int64_t> shape;
  int layer;          // -1: none
  std::string label;  // for messages: "layer 17: attn_k.weight"
};

/// Names of a file's tensors by their role.
class Namer {
 public:
  explicit Namer(const TensorFile& file)
      : names_(dynamic_cast<const GgufFile*>(&file) != nullptr ? gguf_names() : hf_names()) {}

  const TensorNames& names() const { return names_; }
  std::string prefix(int layer) const { return fmt::format(fmt::runtime(names_.layer_prefix), layer); }
  std::string weight(int layer, const char* name) const {
    return (layer < 0 ? "" : prefix(layer)) + name + ".weight";
  }
  std::string bias(int layer, const char* name) const { return prefix(layer) + name + ".bias"; }

 private:
  const TensorNames& names_;
};

std::vector<Wanted> wanted_tensors(const Namer& namer, const ModelConfig& c) {
  const TensorNames& n = namer.names();
  const int64_t q = int64_t{c.n_heads} * c.head_dim, kv = int64_t{c.n_kv_heads} * c.head_dim;
  std::vector<Wanted> out;
  const auto weight = [&](int layer, const char* name, std::vector<int64_t> shape) {
    const std::string label = layer < 0 ? std::string() : fmt::format("layer {}: ", layer);
    out.push_back({namer.weight(layer, name), std::move(shape), layer, label + name + ".weight"});
  };
  const auto bias = [&](int layer, const char* name, int64_t width) {
    out.push_back({namer.bias(layer, name), {width}, layer, fmt::format("layer {}: {}.bias", layer, name)});
  };
  weight(-1, n.embedding, {c.vocab, c.hidden});
  weight(-1, n.final_norm, {c.hidden});
  if (!c.tied_embeddings) weight(-1, n.lm_head, {c.vocab, c.hidden});
  for (int i = 0; i < c.n_layers; i++) {
    weight(i, n.attention_norm, {c.hidden});
    weight(i, n.q, {q, c.hidden});
    weight(i, n.k, {kv, c.hidden});
    weight(i, n.v, {kv, c.hidden});
    weight(i, n.o, {c.hidden, q});
    if (c.qkv_bias) bias(i, n.q, q), bias(i, n.k, kv), bias(i, n.v, kv);
    if (c.output_bias) bias(i, n.o, c.hidden);
    if (c.qk_norm) weight(i, n.q_norm, {c.head_dim}), weight(i, n.k_norm, {c.head_dim});
    weight(i, n.mlp_norm, {c.hidden});
    weight(i, n.gate, {c.intermediate, c.hidden});
    weight(i, n.up, {c.intermediate, c.hidden});
    weight(i, n.down, {c.hidden, c.intermediate});
  }
  return out;
}

/// What the file has beyond the model. A bias that nobody adds would give fluent, wrong text: refused.
void check_extras(const TensorFile& file, const Namer& namer, const ModelConfig& c,
                  const std::vector<Wanted>& wanted) {
  std::unordered_set<std::string_view> known;
  for (const Wanted& w : wanted) known.insert(w.name);
  std::vector<std::string> extras;
  for (const TensorInfo& t : file.tensors()) {
    if (known.contains(t.name)) continue;
    const bool ignored = std::any_of(namer.names().ignored.begin(), namer.names().ignored.end(),
                                     [&](const std::string& suffix) { return t.name.ends_with(suffix); });
    const bool tied_copy = c.tied_embeddings && t.name == namer.weight(-1, namer.names().lm_head);
    if (ignored || tied_copy) continue;
    if (t.name.ends_with(".bias"))
      throw_error(ErrorCode::Unsupported, "tensor {}: the {} decoder has no such bias and would ignore it",
                  t.name, name_of(c.architecture));
    extras.push_back(t.name);
  }
  if (!extras.empty())
    log_warning(fmt::format("{} tensor{} of the file {} not used by the {} decoder, the first is {}",
                            extras.size(), extras.size() == 1 ? "" : "s", extras.size() == 1 ? "is" : "are",
                            name_of(c.architecture), extras[0]));
}

/// Matrices stacked by rows: q, k and v, or gate and up. `names` without suffix.
struct Stack {
  std::vector<const TensorInfo*> parts;
  std::vector<float> bias;
};

/// Codes of a stack whose parts have one code format; none else (then the weights go through floats).
WeightCodes codes_of(const TensorFile& file, const std::vector<const TensorInfo*>& parts) {
  const auto format = code_format(parts[0]->type);
  for (const TensorInfo* t : parts)
    if (code_format(t->type) != format) return {};
  if (!format) return {};
  WeightCodes out{.bits = format->bits,
                  .block = format->block,
                  .zero = format->zero,
                  .has_offset = format->has_offset,
                  .params_in_fp16 = !parts[0]->type.ends_with("_K")};  // K-quants: products of two numbers
  const int64_t width = parts[0]->shape[1], parts_of_row = width / format->block;
  out.fill = [&file, parts, width, parts_of_row](int row0, int n_rows, uint8_t* codes, float* scale,
                                                 float* offset) {
    int64_t first = 0;
    for (const TensorInfo* t : parts) {
      const int64_t begin = std::max<int64_t>(row0, first),
                    end = std::min(first + t->shape[0], int64_t{row0} + n_rows);
      const int64_t at = begin - row0;
      if (begin < end)
        read_codes(file, *t, begin - first, end - begin, codes + at * width, scale + at * parts_of_row,
                   offset + at * parts_of_row);
      first += t->shape[0];
    }
  };
  return out;
}

class Loader {
 public:
  Loader(const TensorFile& file, const ModelConfig& config, Backend& backend)
      : Loader(file, config, backend, "load model", count_bytes(file)) {}
  /// `title` and `bytes` of the tensors to be read: what the progress shows.
  Loader(const TensorFile& file, const ModelConfig& config, Backend& backend, const char* title,
         int64_t bytes)
      : file_(file), namer_(file), config_(config), backend_(backend), progress_(title, bytes) {}

  ModelWeights load() {
    const TensorNames& n = namer_.names();
    ModelWeights w;
    w.embedding = backend_.make_embedding(embedding_source(stack(-1, {n.embedding}, false)));
    w.final_norm = vector(-1, n.final_norm);
    w.lm_head = linear(-1, {config_.tied_embeddings ? n.embedding : n.lm_head}, false);
    file_.forget();
    for (int i = 0; i < config_.n_layers; i++) {
      throw_if_interrupted();
      w.layers.push_back(layer(i));
      file_.forget();  // else the weights would be in memory twice
    }
    return w;
  }

  /// W_o; `v` with a decode matrix: for outputs in its basis.
  std::unique_ptr<Linear> output(int layer, const Transform* v) {
    const Stack s = stack(layer, {namer_.names().o}, config_.output_bias);
    if (!v) return make(s, source(s));
    const auto basis = std::make_shared<const OutputBasis>(*v, config_.n_heads);
    LinearSource turned = source(s);
    std::vector<float> bias;
    if (basis->has_mean()) {
      constexpr int kRows = 256;
      bias = s.bias;
      bias.resize(turned.n_out);  // zeros where the file has none
      std::vector<float> rows(static_cast<size_t>(kRows) * turned.n_in);
      for (int row = 0; row < turned.n_out; row += kRows) {
        const int n = std::min(kRows, turned.n_out - row);
        turned.fill(row, n, rows.data());
        basis->add_mean(rows.data(), n, bias.data() + row);
      }
      turned.bias = bias;
    }
    turned.fill = [fill = turned.fill, basis](int row0, int n_rows, float* rows) {
      fill(row0, n_rows, rows);
      basis->absorb(rows, n_rows);
    };
    return make(s, turned);
  }

 private:
  static int64_t count_bytes(const TensorFile& file) {
    int64_t bytes = 0;
    for (const TensorInfo& t : file.tensors()) bytes += static_cast<int64_t>(t.bytes);
    return bytes;
  }

  LayerWeights layer(int i) {
    const TensorNames& n = namer_.names();
    LayerWeights w;
    w.attention_norm = vector(i, n.attention_norm);
    w.qkv = linear(i, {n.q, n.k, n.v}, config_.qkv_bias);
    if (config_.qk_norm) w.q_norm = vector(i, n.q_norm), w.k_norm = vector(i, n.k_norm);
    w.o = output(i, nullptr);
    w.mlp_norm = vector(i, n.mlp_norm);
    w.gate_up = linear(i, {n.gate, n.up}, false);
    w.down = linear(i, {n.down}, false);
    return w;
  }

  const TensorInfo& tensor(const std::string& name) const {
    const TensorInfo* t = file_.find(name);
    KV2_CHECK(t != nullptr, "{} passed check_tensors", name);
    return *t;
  }

  DeviceBuffer vector(int layer, const char* name) {
    const TensorInfo& t = tensor(namer_.weight(layer, name));
    std::vector<float> values(t.n_elements());
    file_.read_rows(t, 0, t.n_elements(), values.data());
    return DeviceBuffer::of(backend_, values);
  }

  Stack stack(int layer, std::initializer_list<const char*> names, bool with_bias) {
    Stack s;
    for (const char* name : names) {
      s.parts.push_back(&tensor(namer_.weight(layer, name)));
      if (!with_bias) continue;
      const TensorInfo& b = tensor(namer_.bias(layer, name));
      const size_t at = s.bias.size();
      s.bias.resize(at + b.n_elements());
      file_.read_rows(b, 0, b.n_elements(), s.bias.data() + at);
    }
    return s;
  }

  /// `s` must outlive make_linear; so it is returned by value and kept by the callers' full expressions.
  LinearSource source(const Stack& s) {
    LinearSource out;
    out.n_in = static_cast<int>(s.parts[0]->shape[1]);
    for (const TensorInfo* t : s.parts) out.n_out += static_cast<int>(t->shape[0]);
    out.bias = s.bias;
    out.fill = [&file = file_, parts = s.parts, n_in = out.n_in](int row0, int n_rows, float* rows) {
      int64_t first = 0;  // of this part, in the stacked matrix
      for (const TensorInfo* t : parts) {
        const int64_t begin = std::max<int64_t>(row0, first),
                      end = std::min(first + t->shape[0], int64_t{row0} + n_rows);
        if (begin < end) file.read_rows(*t, begin - first, end - begin, rows + (begin - row0) * n_in);
        first += t->shape[0];
      }
    };
    if (backend_.multiplies_codes()) out.coded = codes_of(file_, s.parts);
    return out;
  }

  /// Where rows stay in the file, reading one leaves 64 KiB of it in memory (the kernel maps the neighbours
  /// of a page, too): after a few prompts that would be the whole table. So the file's memory is given back
  /// all the while.
  LinearSource embedding_source(const Stack& s) {
    constexpr int kRowsKept = 32;  // 2 MiB at most
    LinearSource out = source(s);
    out.fill = [&file = file_, fill = out.fill, n_read = std::make_shared<std::atomic<int64_t>>(0)](
                   int row0, int n_rows, float* rows) {
      fill(row0, n_rows, rows);
      const int64_t before = n_read->fetch_add(n_rows, std::memory_order_relaxed);
      if (before / kRowsKept != (before + n_rows) / kRowsKept) file.forget();
    };
    return out;
  }

  std::unique_ptr<Linear> linear(int layer, std::initializer_list<const char*> names, bool with_bias) {
    const Stack s = stack(layer, names, with_bias);
    return make(s, source(s));
  }
  std::unique_ptr<Linear> make(const Stack& s, const LinearSource& from) {
    auto out = backend_.make_linear(from);
    for (const TensorInfo* t : s.parts) progress_.advance(static_cast<int64_t>(t->bytes));
    return out;
  }

  const TensorFile& file_;
  const Namer namer_;
  const ModelConfig& config_;
  Backend& backend_;
  Progress progress_;
};

const TensorInfo& output_tensor(const TensorFile& file, const Namer& namer, int layer) {
  const TensorInfo* t = file.find(namer.weight(layer, namer.names().o));
  KV2_CHECK(t != nullptr, "layer {} passed check_tensors", layer);
  return *t;
}

void require_float_output(const TensorInfo& t, int layer, const Backend& backend) {
  if (backend.multiplies_codes() && code_format(t.type))
    throw_error(ErrorCode::Unsupported,
                "layer {}: {} is multiplied in the file's codes ({}), which cannot absorb V's basis; float "
                "weights can: --linears bf16 or f32, or --device cuda:0",
                layer, t.name, t.type);
}

}  // namespace

size_t ModelWeights::bytes() const {
  size_t sum = embedding->bytes() + lm_head->bytes() + final_norm.bytes();
  for (const LayerWeights& l : layers)
    sum += l.attention_norm.bytes() + l.qkv->bytes() + l.q_norm.bytes() + l.k_norm.bytes() + l.o->bytes() +
           l.mlp_norm.bytes() + l.gate_up->bytes() + l.down->bytes();
  return sum;
}

void check_tensors(const TensorFile& file, const ModelConfig& config) {
  const Namer namer(file);
  const std::vector<Wanted> wanted = wanted_tensors(namer, config);
  for (const Wanted& w : wanted) {
    const TensorInfo* t = file.find(w.name);
    if (t == nullptr)
      throw_error(ErrorCode::BadFile, "{}: missing; expected {} ({})", w.label, shape_text(w.shape), w.name);
    if (t->shape != w.shape)
      throw_error(ErrorCode::BadFile, "{}: expected {}, file has {}", w.label, shape_text(w.shape),
                  shape_text(t->shape));
  }
  check_extras(file, namer, config, wanted);
}

ModelWeights load_weights(const TensorFile& file, const ModelConfig& config, Backend& backend) {
  return Loader(file, config, backend).load();
}

void load_output_projections(const TensorFile& file, const ModelConfig& config, Backend& backend,
                             std::span<const LayerTransforms> transforms, ModelWeights& weights) {
  const auto basis_of = [&](int layer) -> const Transform* {
    return transforms.empty() || transforms[layer].v.decode.empty() ? nullptr : &transforms[layer].v;
  };
  KV2_CHECK(transforms.empty() || transforms.size() == weights.layers.size(), "{} transforms, {} layers",
            transforms.size(), weights.layers.size());
  // A layer without W_o is one that an earlier call could not make.
  const auto is_new = [&](int layer) {
    const LayerWeights& w = weights.layers[layer];
    return basis_of(layer) || w.o_has_basis || !w.o;
  };
  const Namer namer(file);
  int64_t bytes = 0;
  for (int i = 0; i < config.n_layers; i++) {
    const TensorInfo& t = output_tensor(file, namer, i);
    if (basis_of(i)) require_float_output(t, i, backend);
    if (is_new(i)) bytes += static_cast<int64_t>(t.bytes);
  }
  if (bytes == 0) return;
  Loader loader(file, config, backend, "V into W_o", bytes);
  for (int i = 0; i < config.n_layers; i++) {
    LayerWeights& w = weights.layers[i];
    if (!is_new(i)) continue;
    throw_if_interrupted();
    w.o.reset();  // never in memory twice
    w.o = loader.output(i, basis_of(i));
    w.o_has_basis = basis_of(i) != nullptr;
    file.forget();
  }
}

void require_float_outputs(const TensorFile& file, const ModelConfig& config, const Backend& backend) {
  const Namer namer(file);
  for (int i = 0; i < config.n_layers; i++) require_float_output(output_tensor(file, namer, i), i, backend);
}

void read_output_projection(const TensorFile& file, const ModelConfig& config, int layer, float* out) {
  KV2_CHECK(layer >= 0 && layer < config.n_layers, "layer {} of {}", layer, config.n_layers);
  file.read_rows(output_tensor(file, Namer(file), layer), 0, config.hidden, out);
}

size_t plan_weight_bytes(const TensorFile& file, const ModelConfig& c, const Backend& backend) {
  const Namer namer(file);
  const TensorNames& n = namer.names();
  const size_t element = backend.linear_precision() == "bf16" ? 2 : 4;
  enum class Use { Linear, Embedding };
  const auto matrix = [&](int layer, std::initializer_list<const char*> names, Use use) -> size_t {
    std::vector<const TensorInfo*> parts;
    int64_t n_out = 0;
    for (const char* name : names) {
      parts.push_back(file.find(namer.weight(layer, name)));
      KV2_CHECK(parts.back() != nullptr, "layer {} passed check_tensors", layer);
      n_out += parts.back()->shape[0];
    }
    const int64_t n_in = parts[0]->shape[1];
    const WeightCodes codes = backend.multiplies_codes() ? codes_of(file, parts) : WeightCodes{};
    if (codes.bits == 0) return static_cast<size_t>(n_in * n_out) * element;
    if (use == Use::Embedding) return 0;  // its rows are read from the file
    return backend.coded_bytes(static_cast<int>(n_in), static_cast<int>(n_out), codes);
  };
  const size_t h = c.hidden, qkv = c.qkv_width();
  // Tied embeddings are kept twice: see make_embedding.
  size_t matrices = matrix(-1, {n.embedding}, Use::Embedding) +
                    matrix(-1, {c.tied_embeddings ? n.embedding : n.lm_head}, Use::Linear);
  for (int i = 0; i < c.n_layers; i++)
    matrices += matrix(i, {n.q, n.k, n.v}, Use::Linear) + matrix(i, {n.o}, Use::Linear) +
                matrix(i, {n.gate, n.up}, Use::Linear) + matrix(i, {n.down}, Use::Linear);
  const size_t vectors = h + c.n_layers * (2 * h + (c.qkv_bias ? qkv : 0) + (c.output_bias ? h : 0) +
                                           (c.qk_norm ? 2 * c.head_dim : 0));
  return matrices + vectors * sizeof(float);
}

}  // namespace kv2
