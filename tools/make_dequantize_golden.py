#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes src/formats/testdata/dequantize.safetensors: random blocks of every decodable type and what the Python package
`gguf` decodes them to, and the block sizes of all types. Needs gguf, numpy and safetensors. Deterministic.

Usage: tools/make_dequantize_golden.py OUT"""
import sys

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from safetensors.numpy import save_file

# Byte offsets of the fp16 fields of a block: random bytes there would give infinities and NaNs.
HALF_FIELDS = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108],
               "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}


def random_blocks(rng: np.random.Generator, name: str, n: int, size: int) -> np.ndarray:
    blocks = rng.integers(0, 256, (n, size), dtype=np.uint8)
    for at in HALF_FIELDS[name]:
        d = rng.normal(0.01, 0.05, n).astype(np.float16)
        d[0] = np.float16(3e-6)  # a subnormal
        blocks[:, at:at + 2] = d.view(np.uint8).reshape(n, 2)
    return blocks


def main() -> int:
    rng = np.random.default_rng(20260)
    tensors = {}
    for name in HALF_FIELDS:
        kind = GGMLQuantizationType[name]
        elements, size = GGML_QUANT_SIZES[kind]
        blocks = random_blocks(rng, name, 5 if elements == 256 else 9, size)
        tensors[name + ".blocks"] = blocks
        tensors[name + ".values"] = dequantize(blocks, kind).astype(np.float32).reshape(-1)
    # Plain floats: every sign, exponent and a spread of mantissas; no NaN.
    halves = np.arange(0, 65536, 61, dtype=np.uint32).astype(np.uint16)
    f16 = halves[~np.isnan(halves.view(np.float16))]
    tensors["F16.blocks"] = f16.view(np.uint8)
    tensors["F16.values"] = f16.view(np.float16).astype(np.float32)
    bf16 = halves[~np.isnan((halves.astype(np.uint32) << 16).view(np.float32))]
    tensors["BF16.blocks"] = bf16.view(np.uint8)
    tensors["BF16.values"] = dequantize(bf16.view(np.uint8), GGMLQuantizationType.BF16).reshape(-1)
    f32 = rng.normal(0.5, 2.0, 77).astype(np.float32)
    tensors["F32.blocks"], tensors["F32.values"] = f32.view(np.uint8), f32
    # Q8_1 never stands in files, and its size differs between versions.
    sizes = {k.name: f"{int(k)} {n} {b}" for k, (n, b) in GGML_QUANT_SIZES.items() if k.name != "Q8_1"}
    save_file(tensors, sys.argv[1], metadata=sizes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
