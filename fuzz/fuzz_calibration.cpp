// SPDX-License-Identifier: Apache-2.0
// Calibration files: what is read has the shapes and the ranges that load promises.
#include "formats/calibration_file.h"

#include <cmath>

#include "formats/inspect.h"
#include "framed.h"

namespace {

void require(bool promise) {
  if (!promise) std::abort();
}

void check_promises(const kv2::Calibration& c) {
  const size_t vector = static_cast<size_t>(c.n_kv_heads) * static_cast<size_t>(c.head_dim);
  const size_t matrix = vector * static_cast<size_t>(c.head_dim);
  require(!c.layers.empty() && matrix > 0);
  for (const kv2::LayerCalibration& l : c.layers) {
    for (const auto* m : {&l.c_q, &l.c_s, &l.c_s_energy, &l.k_cov, &l.k_pre_cov, &l.v_cov, &l.metric_v})
      require(m->size() == matrix);
    for (const auto* v : {&l.k_mean, &l.k_pre_mean, &l.v_mean}) require(v->size() == vector);
    for (const float x : l.c_q) require(std::isfinite(x));
    require(l.clip_k > 0 && l.clip_k <= 1 && l.clip_v > 0 && l.clip_v <= 1);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kv2;
  const std::vector<std::byte> bytes = fuzz::framed(data, size);
  fuzz::expect_error_at_most([&] {
    const Calibration c = read_calibration(*SafetensorsFile::parse(bytes, "fuzz.calibration"));
    check_promises(c);
    inspect_bytes(bytes, "fuzz.calibration", false);
    c.require_model("another model");
  });
  return 0;
}
