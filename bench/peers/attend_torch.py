#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times PyTorch's bf16 attention kernels (flash, cuDNN, memory-efficient) on the shapes that `kv2 bench attend --device
cuda:0` has of its own: same heads, same flush of the L2, medians. In decode one query per sequence; the query heads of a KV
head also as rows of one query, whichever is faster counts. With --ours KV2 that program is run just before, and a last table
gives peer ÷ kv2 (and kv2 ÷ flash for prompts). --json: a line per shape of the table."""
import argparse
import json
import subprocess

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as sdpa

DECODE = [(32, 32768), (8, 32768), (1, 131072), (1, 32768), (1, 8192)]  # batch, tokens
PREFILL = 32768
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


def time_forms(forms, names, flush, n=21):
    """Milliseconds of every (backend, form) that runs; what a backend refuses is left out."""
    found = {}
    for name in names:
        for form, run in forms.items():
            try:
                with sdpa_kernel(BACKENDS[name]):
                    found[f"{name}/{form}" if form else name] = median_ms(run, flush, n)
            except RuntimeError as error:
                print(f"not {name} {form}: {str(error).splitlines()[0]}")
    return found


def decode(flush, batch, tokens):
    k, v = (torch.randn(batch, KV_HEADS, tokens, D, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    q = torch.randn(batch, KV_HEADS * Q_PER_KV, 1, D, device="cuda", dtype=torch.bfloat16)
    folded = q.view(batch, KV_HEADS, Q_PER_KV, D)
    return time_forms({"folded": lambda: sdpa(folded, k, v), "gqa": lambda: sdpa(q, k, v, enable_gqa=True)}, BACKENDS, flush)


def prefill(flush, tokens):
    """One whole prompt, causal."""
    q = torch.randn(1, KV_HEADS * Q_PER_KV, tokens, D, device="cuda", dtype=torch.bfloat16)
    k, v = (torch.randn(1, KV_HEADS, tokens, D, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return time_forms({"": lambda: sdpa(q, k, v, is_causal=True, enable_gqa=True)}, ("flash", "cudnn"), flush, 5)


def run_ours(program):
    """Milliseconds by (method, batch, tokens, rows), for the heads above. Its lines are printed as they come."""
    ours, read = {}, 0
    command = [program, "bench", "limits", "attend", "--device", "cuda:0", "--repeat", "7", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    for line in process.stdout:
        row = json.loads(line)
        ms = row["median_s"] * 1e3
        if row["part"] == "limits" and row["name"].startswith("read"):
            read = row["bytes"] / row["best_s"]
        share = f", {row['bytes'] / ms / 1e9:.2f} TB/s = {100 * row['bytes'] / ms * 1e3 / read:.0f} % of read" if "bytes" in row else ""
        speed = f", {row['operations_bf16'] / ms / 1e9:.0f} TFLOP/s" if "operations_bf16" in row else ""
        error = f", error {row['error']:.1e}" if "error" in row else ""
        print(f"kv2 {row['part']} {row['name']}: {ms:.4f} ms{share}{speed}{error}", flush=True)
        if row["part"] == "attend" and (row["kv_heads"], row["q_per_kv"], row["head_dim"]) == (KV_HEADS, Q_PER_KV, D):
            ours[row["kv"], row["sequences"], row["tokens"], row["rows"]] = ms
    if process.wait() != 0:
        raise SystemExit(f"{program} failed")
    return ours


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--ours", metavar="KV2")
    options.add_argument("--json", action="store_true")
    args = options.parse_args()
    ours = run_ours(args.ours) if args.ours else {}
    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    print(f"torch {torch.__version__} on {torch.cuda.get_device_name()}, bf16, {KV_HEADS * Q_PER_KV} query heads, "
          f"{KV_HEADS} KV heads, d {D}")
    table = []
    for batch, tokens, rows in [(b, t, 1) for b, t in DECODE] + [(1, PREFILL, PREFILL)]:
        found = decode(flush, batch, tokens) if rows == 1 else prefill(flush, tokens)
        best = min(found, key=found.get)
        each = ", ".join(f"{name} {ms:.4f}" for name, ms in sorted(found.items(), key=lambda x: x[1]))
        print(f"peer B={batch} T={tokens} rows={rows}: best {best} {found[best]:.4f} ms ({each})", flush=True)
        for (method, *shape), ms in ours.items():
            if shape == [batch, tokens, rows]:
                flash = min((t for name, t in found.items() if name.startswith("flash")), default=float("nan"))
                table.append({"method": method, "batch": batch, "tokens": tokens, "rows": rows, "kv2_ms": ms, "peer": best,
                              "peer_ms": found[best], "best_over_kv2": found[best] / ms, "kv2_over_flash": ms / flash})
    for row in table:
        if args.json:
            print(json.dumps(row))
        else:
            print("{method} B={batch} T={tokens} rows={rows}: kv2 {kv2_ms:.4f} ms, {peer} {peer_ms:.4f} ms, best ÷ kv2 "
                  "{best_over_kv2:.2f}, kv2 ÷ flash {kv2_over_flash:.2f}".format(**row))


if __name__ == "__main__":
    main()
