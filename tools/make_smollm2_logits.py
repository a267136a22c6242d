#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/goldens/smollm2_logits.safetensors: what SmolLM2-135M-Instruct says, by an independent implementation.

The model is written out below in plain PyTorch, float32, on the weights of the GGUF file as the `gguf` package decodes
them; nothing of kv2 or of a model library computes here. Five prompts of 64 to 300 tokens; for the last 64 positions of
each:

    tokens           [n_total] int32, all prompts one after the other
    lengths          [5] int32
    NAME.ids         [320, 128] int32    the most likely 128 tokens, best first
    NAME.log_probs   [320, 128] float32  their log probabilities
    NAME.rest        [320] float32       log of the mass of all other tokens, one bucket

NAME is `kv16`: K (after RoPE) and V rounded to bf16, as every cache of kv2 holds them at least; or `plain`: without that.
The two differ by a mean KL of 3.5e-5 (printed): no engine with a bf16 cache can be nearer to `plain`.

KL over these 129 outcomes is a lower bound of the KL over the vocabulary, tight where `rest` is small (it is printed).

usage: make_smollm2_logits.py SmolLM2-135M-Instruct.Q4_1.gguf OUT.safetensors
Needs torch, gguf, safetensors and transformers (for the tokenizer in the file's metadata).
"""
import argparse
import pathlib

import numpy as np
import torch
from gguf import GGUFReader, dequantize
from safetensors.torch import save_file
from transformers import AutoTokenizer

POSITIONS, KEPT = 64, 128

PROMPTS = [
    # a chat, as the model was tuned for
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n<|im_start|>user\n"
    "Why does bread rise in the oven, and why does it stop rising after a while? Answer in a short paragraph.<|im_end|>\n"
    "<|im_start|>assistant\nBread rises because yeast eats sugar in the dough and gives off carbon dioxide, and the gas is "
    "caught in a net of gluten. In the oven the gas expands and water turns to steam, until the crust sets",
    # prose
    "The lighthouse keeper had not spoken to anyone for three weeks when the supply boat finally came round the point. He "
    "stood on the jetty in his good coat and watched it fight the swell, and he thought of all the things he had meant to "
    "ask for: lamp oil, tobacco, a new spring for the clock, and some newspaper, however old, that would tell him whether "
    "the strike was over. The skipper threw him a line without a word. It was only when the crates were ashore that the man "
    "took off his cap and said that there would be no more boats that winter, because the company had been sold, and the new "
    "owners did not believe in lighthouses. The keeper laughed at first. Then he looked at the sea, which was turning the "
    "colour of slate, and asked what they did believe in. The skipper shrugged. Machines, he said, and went back to his wheel, "
    "leaving the old man alone with eleven crates, a dog that was not his, and a letter he did not want to open.",
    # code
    "def merge_sorted(a, b):\n    \"\"\"Merge two sorted lists into one sorted list.\"\"\"\n    out = []\n    i = j = 0\n"
    "    while i < len(a) and j < len(b):\n        if a[i] <= b[j]:\n            out.append(a[i])\n            i += 1\n"
    "        else:\n            out.append(b[j])\n            j += 1\n    out.extend(a[i:])\n    out.extend(b[j:])\n    return out\n\n\n"
    "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n        self.items.append(item)\n",
    # numbers, lists, several scripts
    "Distances from the Sun in millions of kilometres: Mercury 57.9, Venus 108.2, Earth 149.6, Mars 227.9, Jupiter 778.6, "
    "Saturn 1433.5, Uranus 2872.5, Neptune 4495.1.\n\n| word | Deutsch | français | 日本語 |\n|---|---|---|---|\n| water | Wasser | eau | 水 |\n"
    "| fire | Feuer | feu | 火 |\n| mountain | Berg | montagne | 山 |\n",
    # technical English
    "A cache holds copies of data that are expensive to fetch again. When it is full, something has to leave before anything "
    "new can enter, and the rule that decides what leaves is called the replacement policy. The least recently used entry is "
    "a popular victim, because programs tend to come back to what they touched a moment ago.",
]


class Llama:
    """The architecture, from its description; q and k of GGUF files pair neighbouring channels."""

    def __init__(self, path):
        reader = GGUFReader(path)
        field = lambda key: reader.fields[key].contents()
        self.n_layers, self.n_heads = field("llama.block_count"), field("llama.attention.head_count")
        self.n_kv, self.eps = field("llama.attention.head_count_kv"), field("llama.attention.layer_norm_rms_epsilon")
        self.theta = field("llama.rope.freq_base")
        self.w = {t.name: torch.from_numpy(np.array(dequantize(t.data, t.tensor_type), dtype=np.float32)).reshape(
            [int(s) for s in reversed(t.shape)]) for t in reader.tensors}
        self.d = field("llama.embedding_length") // self.n_heads

    def norm(self, x, name):
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + self.eps) * self.w[name + ".weight"]

    def rope(self, x):  # [n, heads, d]
        angle = torch.arange(x.shape[0], dtype=torch.float64)[:, None] * self.theta ** (
            -torch.arange(0, self.d, 2, dtype=torch.float64) / self.d)
        c, s = angle.cos().float()[:, None], angle.sin().float()[:, None]
        even, odd = x[..., 0::2], x[..., 1::2]
        return torch.stack([even * c - odd * s, even * s + odd * c], -1).flatten(-2)

    def logits(self, tokens, kv16):
        n = len(tokens)
        x = self.w["token_embd.weight"][tokens]
        mask = torch.full((n, n), float("-inf")).triu(1)
        for i in range(self.n_layers):
            b = f"blk.{i}."
            h = self.norm(x, b + "attn_norm")
            q, k, v = ((h @ self.w[b + f"attn_{name}.weight"].T).view(n, -1, self.d) for name in "qkv")
            q, k = self.rope(q), self.rope(k)
            if kv16:
                k, v = k.bfloat16().float(), v.bfloat16().float()
            k, v = (t.repeat_interleave(self.n_heads // self.n_kv, 1) for t in (k, v))
            p = (torch.einsum("ihd,jhd->hij", q, k) / self.d ** 0.5 + mask).softmax(-1)
            x = x + torch.einsum("hij,jhd->ihd", p, v).reshape(n, -1) @ self.w[b + "attn_output.weight"].T
            h = self.norm(x, b + "ffn_norm")
            gate = torch.nn.functional.silu(h @ self.w[b + "ffn_gate.weight"].T)
            x = x + (gate * (h @ self.w[b + "ffn_up.weight"].T)) @ self.w[b + "ffn_down.weight"].T
        return self.norm(x, "output_norm") @ self.w.get("output.weight", self.w["token_embd.weight"]).T


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    args = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(args.model.parent, gguf_file=args.model.name)
    model = Llama(args.model)
    tokens, lengths, divergences = [], [], []
    parts = {f"{name}.{what}": [] for name in ("kv16", "plain") for what in ("ids", "log_probs", "rest")}
    for prompt in PROMPTS:
        prompt_ids = tokenizer.encode(prompt, add_special_tokens=False)
        assert len(prompt_ids) >= POSITIONS, (len(prompt_ids), prompt[:40])
        tokens += prompt_ids
        lengths.append(len(prompt_ids))
        lps = {}
        for name in ("kv16", "plain"):
            with torch.no_grad():
                lp = model.logits(torch.tensor(prompt_ids), name == "kv16").double().log_softmax(-1)[-POSITIONS:]
            top = lp.topk(KEPT, dim=-1)
            parts[f"{name}.ids"].append(top.indices.int())
            parts[f"{name}.log_probs"].append(top.values.float())
            parts[f"{name}.rest"].append(lp.scatter(-1, top.indices, float("-inf")).logsumexp(-1).float())
            lps[name] = lp
        divergences.append((lps["plain"].exp() * (lps["plain"] - lps["kv16"])).sum(-1))
        nll = -lp[:-1].gather(-1, torch.tensor(prompt_ids[-POSITIONS + 1:])[:, None]).mean()
        print(f"{len(prompt_ids)} tokens, mean rest mass {parts['plain.rest'][-1].exp().mean():.4f}, perplexity "
              f"{nll.exp():.2f}, begins {prompt_ids[:6]}")
    print(f"mean KL of kv16 from plain {torch.cat(divergences).mean():.2e}")
    save_file({"tokens": torch.tensor(tokens, dtype=torch.int32), "lengths": torch.tensor(lengths, dtype=torch.int32),
               **{name: torch.cat(rows).contiguous() for name, rows in parts.items()}}, args.out)
    args.out.chmod(0o644)
    print(f"{args.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
