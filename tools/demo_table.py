#!/usr/bin/env python3
"""Prints the demo's texts and its one table from the JSON of `kv2 run` and `kv2 eval kld`."""
import json
import pathlib
import sys
import textwrap

out, methods = pathlib.Path(sys.argv[1]), sys.argv[2:]
runs = {m: json.loads((out / f"run_{m}.json").read_text()) for m in methods}
scores = [json.loads(line) for line in (out / "kld.jsonl").read_text().splitlines()]
scores = {s["method"].split(":")[0]: s for s in scores}


def same_tokens(a, b):
    n = 0
    while n < min(len(a), len(b)) and a[n] == b[n]:
        n += 1
    return n


for m in ("bf16", "oscar2", "kv2"):
    r = runs[m]
    print(f"\n--- {m}: {len(r['tokens'])} tokens after a prompt of {r['prompt_tokens']}")
    print(textwrap.fill(" ".join(r["text"].split()), 110))
agree = {m: same_tokens(runs["bf16"]["tokens"], runs[m]["tokens"]) for m in methods if m != "bf16"}
print("\nTokens before the text leaves bf16's: " + ", ".join(f"{m} {n}" for m, n in agree.items()) + ".")

head = ["method", "history bits", "all-in bits", "KV bytes", "tokens/s", "perplexity", "KL vs bf16", "same top-1"]
rows = []
for m in methods:
    s = scores[m]
    rows.append([m, f"{s['history_bits']:.2f}", f"{s['all_in_bits']:.2f}", f"{s['kv_bytes']:,}",
                 f"{runs[m]['decode_tokens_per_second']:.1f}", f"{s['ppl']:.3f}", f"{s['kl_mean']:.4f}",
                 f"{100 * s['top1']:.1f} %"])
width = [max(len(r[i]) for r in [head, *rows]) for i in range(len(head))]
print()
for r in [head, *rows]:
    print("  ".join(x.ljust(w) if i == 0 else x.rjust(w) for i, (x, w) in enumerate(zip(r, width))))
s = scores["bf16"]
print(f"\nbits, bytes, perplexity and KL: one sequence of {s['tokens'] + s.get('windows', 1)} tokens of real text, "
      f"KL over the {s.get('kl_tokens', 0)} with a history;\ntokens/s: decoding 160 tokens after the prompt above.")
