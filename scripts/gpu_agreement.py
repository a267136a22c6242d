#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds a GPU's results against the CPU's with the program alone: logits of one text under several methods (mean KL
divergence and equal most likely tokens), and greedy text token by token, with the gap between the two best logits
where it parts. Text: needles, haystack and questions as in needle-15m's README (or --text FILE), any model's tokenizer.

  scripts/gpu_agreement.py KV2 MODEL [--device cuda:0] [--tokens 3000] [--greedy 256] [--methods bf16,quarot2,kv2] [--absorb]
"""
import argparse
import json
import os
import random
import subprocess
import tempfile

import numpy as np

NOISE = [" The rain is cold.", " The river was deep and slow.", " Come back with the paper.", " The wind will turn.",
         " The light is low.", " Some snow is on the roof.", " The moon is bright.", " Walk to the end of the line."]
WORDS = "river stone paper light tree snow moon wind road lake bread tea".split()


def haystack(n_sentences, seed):
    rng = random.Random(seed)
    needles = {f"{a}-{b}": "".join(rng.choice("0123456789") for _ in range(7)) for a in WORDS for b in WORDS[:4]}
    keys = list(needles)
    text = ("Some special magic numbers are hidden within the following text. Make sure to memorize it. I will quiz "
            "you about the numbers afterwards.\n")
    for i in range(n_sentences):
        text += rng.choice(NOISE)
        if i % 9 == 0:
            key = keys[i // 9 % len(keys)]
            text += f" One of the special magic numbers for {key} is: {needles[key]}."
    asked = keys[:min(len(keys), n_sentences // 9)]
    for key in rng.sample(asked, min(20, len(asked))):
        text += (f"\nWhat is the special magic number for {key} mentioned in the provided text? The special magic "
                 f"number for {key} mentioned in the provided text is {needles[key]}.")
    return text


def kv2(program, *arguments, **options):
    return subprocess.run([program, *map(str, arguments)], check=True, capture_output=True, text=True, **options).stdout


def log_softmax(x):
    x = x.astype(np.float64)
    x -= x.max(axis=1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=1, keepdims=True))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kv2")
    parser.add_argument("model")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--tokens", type=int, default=3000)
    parser.add_argument("--greedy", type=int, default=256)
    parser.add_argument("--methods", default="bf16,quarot2,kv2")
    parser.add_argument("--text", help="a file to read instead of made-up haystacks")
    parser.add_argument("--calibration", help="a file; made here by the CPU from the same kind of text by default")
    parser.add_argument("--absorb", action="store_true", help="the other device's W_o takes in V's way back; methods with one")
    a = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        at = lambda name: os.path.join(work, name)
        for name, seed, n in ("text", 1, a.tokens), ("calibration", 2, 40000):
            with open(at(name), "w") as f:
                f.write(open(a.text).read() if a.text else haystack(n // 8, seed))
        ids = json.loads(kv2(a.kv2, "tokenize", a.model, "--text", at("text"), "--no-bos"))[:a.tokens]
        np.save(at("ids.npy"), np.array(ids, dtype=np.int32))
        calibration = a.calibration or at("model.kv2cal")
        if not a.calibration and any(m.startswith(("oscar", "kv2")) for m in a.methods.split(",")):
            kv2(a.kv2, "calibrate", a.model, "--text", at("calibration"), "--n-tokens", 16384, "--held-out", 4096, "--out", calibration)
        known = ["--calibration", calibration] if os.path.exists(calibration) else []
        on = lambda device: ["--device", device] + (["--absorb"] if a.absorb and device != "cpu" else [])
        for method in a.methods.split(","):
            both = {}
            for device in "cpu", a.device:
                kv2(a.kv2, "logits", a.model, *on(device), "--kv", method, "--tokens", at("ids.npy"), "--out", at("l.npy"), *known)
                both[device] = log_softmax(np.load(at("l.npy")))
            p, q = both["cpu"], both[a.device]
            kl = (np.exp(p) * (p - q)).sum(axis=1)
            same = p.argmax(axis=1) == q.argmax(axis=1)
            print(f"{method}: {len(ids)} tokens, KL(cpu, {a.device}) mean {kl.mean():.2e} max {kl.max():.2e}, "
                  f"same top-1 {100 * same.mean():.2f} %", flush=True)
            prompt = kv2(a.kv2, "tokenize", a.model, "--decode", input=json.dumps(ids[:len(ids) * 3 // 4]))
            with open(at("prompt"), "w") as f:
                f.write(prompt)
            texts = [json.loads(kv2(a.kv2, "run", a.model, *on(device), "--kv", method, "--file", at("prompt"), "--raw", "--no-bos",
                                    "--temperature", 0, "--ignore-eos", "-n", a.greedy, "--json", *known).splitlines()[-1])["tokens"]
                     for device in ("cpu", a.device)]
            parts = [i for i in range(len(texts[0])) if texts[0][i] != texts[1][i]]
            if not parts:
                print(f"{method}: the same {len(texts[0])} greedy tokens", flush=True)
                continue
            shared = json.loads(kv2(a.kv2, "tokenize", a.model, "--text", at("prompt"), "--no-bos")) + texts[0][:parts[0]]
            np.save(at("ids.npy"), np.array(shared, dtype=np.int32))
            gaps = []
            for device in "cpu", a.device:
                kv2(a.kv2, "logits", a.model, *on(device), "--kv", method, "--tokens", at("ids.npy"), "--out", at("l.npy"), *known)
                last = np.load(at("l.npy"))[-1]
                gaps.append(last[texts[0][parts[0]]] - last[texts[1][parts[0]]])
            print(f"{method}: greedy text parts at token {parts[0]} of {len(texts[0])}; logit of the CPU's choice minus the GPU's: "
                  f"{gaps[0]:.4f} on the CPU, {gaps[1]:.4f} on the GPU", flush=True)
            np.save(at("ids.npy"), np.array(ids, dtype=np.int32))


if __name__ == "__main__":
    main()
