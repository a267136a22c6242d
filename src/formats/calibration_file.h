// SPDX-License-Identifier: Apache-2.0
// A calibration as a safetensors file. The bodies of kv2::Calibration (include/kv2/calibrate.h) are beside
// this.
//
// clang-format off
//   metadata   format = "kv2-calibration", format_version, method = "oscar", model_fingerprint, n_kv_heads, head_dim,
//              n_layers, n_tokens, text_hash, tool_version, notes.* (free text), checksum
//   layer.<i>. c_q, c_s, c_s_energy, k_cov, k_pre_cov, v_cov, metric_v   F32 [n_kv_heads, head_dim, head_dim]
//              k_mean, k_pre_mean, v_mean                                F32 [n_kv_heads, head_dim]
//              clips                                                     F32 [2]: K, V
// clang-format on
//
// Ensured by load and save: every tensor there and no other, shapes as the metadata says, all values finite,
// clips in (0, 1]. checksum is the XXH3-128 of all other metadata, by name, and of all tensors, in the file's
// order: one that flipped a bit on its way fits a slightly wrong rotation, and nobody would see it.
//
// Versions: 3 is written. 2 is the same without a checksum and is read, with a warning. 1 had no metric_v and
// is refused, as are versions that are not known here: make the file again.
#pragma once

#include "formats/safetensors.h"
#include "kv2/calibrate.h"

namespace kv2 {

/// Errors: BadFile, Unsupported.
Calibration read_calibration(const SafetensorsFile& file);

}  // namespace kv2
