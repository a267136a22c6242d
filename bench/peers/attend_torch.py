#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times PyTorch's bf16 attention kernels (flash, cuDNN, memory-efficient) on the decode shapes of
bench/cuda/attend.cpp: same heads, same flush of the L2, medians. One query per sequence; the query heads of a KV head
also as rows of one query, whichever is faster counts. Prints one line per shape, the best kernel last."""
import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as sdpa

SHAPES = [(32, 32768), (1, 131072), (1, 32768), (1, 8192), (8, 32768)]
BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION,
            "efficient": SDPBackend.EFFICIENT_ATTENTION}
KV_HEADS, Q_PER_KV, D = 8, 4, 128


def median_ms(run, flush, n=21):
    times = []
    for i in range(n + 3):
        flush.fill_(i % 7)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        if i >= 3:
            times.append(begin.elapsed_time(end))
    return sorted(times)[len(times) // 2]


def main():
    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    print(f"torch {torch.__version__} on {torch.cuda.get_device_name()}, bf16, {KV_HEADS * Q_PER_KV} query heads, "
          f"{KV_HEADS} KV heads, d {D}")
    for batch, tokens in SHAPES:
        k, v = (torch.randn(batch, KV_HEADS, tokens, D, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        q = torch.randn(batch, KV_HEADS * Q_PER_KV, 1, D, device="cuda", dtype=torch.bfloat16)
        folded = q.view(batch, KV_HEADS, Q_PER_KV, D)
        found = {}
        for name, backend in BACKENDS.items():
            for form, run in {
                "folded": lambda: sdpa(folded, k, v),
                "gqa": lambda: sdpa(q, k, v, enable_gqa=True),
            }.items():
                try:
                    with sdpa_kernel(backend):
                        found[f"{name}/{form}"] = median_ms(run, flush)
                except RuntimeError as error:
                    if "--verbose" in sys.argv:
                        print(name, form, str(error).splitlines()[0])
        best = min(found, key=found.get)
        gb = 2 * k.numel() * 2 / 1e9
        each = ", ".join(f"{name} {ms:.4f}" for name, ms in sorted(found.items(), key=lambda x: x[1]))
        print(f"peer B={batch} T={tokens}: best {best} {found[best]:.4f} ms = {gb / found[best]:.2f} TB/s ({each})",
              flush=True)
        del k, v
    prefill(flush)


def prefill(flush, tokens=32768):
    """One whole prompt, causal: what bench/cuda/attend.cpp times as rows = tokens."""
    q = torch.randn(1, KV_HEADS * Q_PER_KV, tokens, D, device="cuda", dtype=torch.bfloat16)
    k, v = (torch.randn(1, KV_HEADS, tokens, D, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    tera = 4 * KV_HEADS * Q_PER_KV * D * tokens * tokens / 2 / 1e12
    for name in ("flash", "cudnn"):
        try:
            with sdpa_kernel(BACKENDS[name]):
                ms = median_ms(lambda: sdpa(q, k, v, is_causal=True, enable_gqa=True), flush, 5)
            print(f"peer prefill T={tokens}: {name} {ms:.3f} ms = {tera / ms * 1e3:.0f} TFLOP/s", flush=True)
        except RuntimeError as error:
            print("peer prefill", name, str(error).splitlines()[0])


if __name__ == "__main__":
    main()
