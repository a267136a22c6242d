#!/usr/bin/env python3
"""kv2 and llama.cpp on the same file, shapes and threads, by turns in one call: a table of ratios and an SVG plot.

usage: compare_cpu.py KV2 LLAMA_BENCH MODEL [--threads N] [--depth 0,2048,...] [--kv oscar2,kv2] [--rounds N]
                      [--calibration FILE] [--out DIR]

Every round runs, depth by depth, each method of kv2 (`kv2 bench --json`, which checks first that prefill and single
steps agree) and llama-bench with flash attention and each KV type, so that a busy moment of the machine hits all of
them alike. The best of all repeats counts: on a shared machine it is the one with the fewest neighbours.
"""
import argparse
import collections
import datetime
import json
import pathlib
import subprocess

LLAMA_KV = ["f16", "q8_0", "q4_0"]


def run(command):
    out = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
    return out


def run_kv2(a, method, depth, results):
    command = [a.kv2, "-q", "bench", a.model, "--parts", "prefill,decode", "--depth", str(depth), "--kv", method, "--threads",
               str(a.threads), "--prompt", str(a.prompt), "--steps", str(a.steps), "--repeat", str(a.repeat), "--json"]
    if a.calibration:
        command += ["--calibration", a.calibration]
    for line in run(command).splitlines():
        row = json.loads(line)
        results[("kv2 " + method, row["part"], depth)] += [row["best_tokens_per_s"]]


def run_llama(a, kv, depth, results):
    rows = json.loads(run([a.llama, "-m", a.model, "-p", str(a.prompt), "-n", str(a.steps), "-d", str(depth), "-t", str(a.threads),
                           "-fa", "1", "-ctk", kv, "-ctv", kv, "-r", str(a.repeat), "-o", "json"]))
    for row in rows:
        part = "prefill" if row["n_prompt"] else "decode"
        results[("llama.cpp " + kv, part, depth)] += row["samples_ts"]


def number(x):
    return "—" if x is None else f"{x:.1f}"


def table(a, best, part):
    engines = ["kv2 " + m for m in a.kv] + ["llama.cpp " + k for k in LLAMA_KV]
    lines = [f"| {part}, tokens/s at depth | " + " | ".join(str(d) for d in a.depth) + " |", "|---" * (len(a.depth) + 1) + "|"]
    for e in engines:
        lines.append(f"| {e} | " + " | ".join(number(best.get((e, part, d))) for d in a.depth) + " |")
    for m in a.kv:
        for k in LLAMA_KV:
            pairs = [(best.get(("kv2 " + m, part, d)), best.get(("llama.cpp " + k, part, d))) for d in a.depth]
            lines.append(f"| kv2 {m} ÷ llama.cpp {k} | " + " | ".join(number(x / y if x and y else None) for x, y in pairs) + " |")
    return "\n".join(lines)


def plot(a, best):
    """Tokens per second of decode over depth, logarithmic, as SVG."""
    import math
    engines = ["kv2 " + m for m in a.kv] + ["llama.cpp " + k for k in LLAMA_KV]
    colours = ["#0b6e4f", "#08a045", "#c1440e", "#e07a2f", "#8d6a9f", "#444444"]
    width, height, left, top, right, bottom = 720, 400, 64, 44, 150, 48
    points_of = {e: [(d, best[(e, "decode", d)]) for d in a.depth if (e, "decode", d) in best] for e in engines}
    values = [v for points in points_of.values() for _, v in points]
    low, high = math.log10(min(values)) - 0.05, math.log10(max(values)) + 0.05
    deepest = max(a.depth) or 1
    x = lambda d: left + (width - left - right) * d / deepest
    y = lambda v: top + (height - top - bottom) * (high - math.log10(v)) / (high - low)
    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
           f'<rect width="{width}" height="{height}" fill="white"/>',
           f'<text x="{left}" y="24" font-size="15">Decode, tokens/s over tokens already in the context ({a.threads} CPU threads)</text>']
    for v in [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000]:
        if low <= math.log10(v) <= high:
            svg += [f'<line x1="{left}" x2="{width - right}" y1="{y(v):.1f}" y2="{y(v):.1f}" stroke="#ddd"/>',
                    f'<text x="{left - 8}" y="{y(v) + 4:.1f}" text-anchor="end">{v}</text>']
    for d in a.depth:
        svg.append(f'<text x="{x(d):.1f}" y="{height - bottom + 20}" text-anchor="middle">{d}</text>')
    last = []
    for e, colour in zip(engines, colours):
        points = points_of[e]
        svg.append(f'<polyline points="{" ".join(f"{x(d):.1f},{y(v):.1f}" for d, v in points)}" fill="none" stroke="{colour}" '
                   'stroke-width="2.5"/>')
        svg += [f'<circle cx="{x(d):.1f}" cy="{y(v):.1f}" r="3" fill="{colour}"/>' for d, v in points]
        last.append([y(points[-1][1]), e, colour])
    last.sort()
    for i, (at, e, colour) in enumerate(last):
        if i and at < last[i - 1][0] + 14:
            last[i][0] = at = last[i - 1][0] + 14
        svg.append(f'<text x="{x(deepest) + 10:.1f}" y="{at + 4:.1f}" fill="{colour}">{e}</text>')
    return "\n".join(svg + ["</svg>"]) + "\n"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("kv2"), p.add_argument("llama"), p.add_argument("model")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--depth", type=lambda t: [int(d) for d in t.split(",")], default=[0, 2048, 4096, 7424])
    p.add_argument("--kv", type=lambda t: t.split(","), default=["oscar2"])
    p.add_argument("--rounds", type=int, default=2)
    p.add_argument("--repeat", type=int, default=3)
    p.add_argument("--steps", type=int, default=16)
    p.add_argument("--prompt", type=int, default=512)
    p.add_argument("--calibration", default="")
    p.add_argument("--out", default="build/bench")
    a = p.parse_args()
    out = pathlib.Path(a.out)
    out.mkdir(parents=True, exist_ok=True)
    results = collections.defaultdict(list)
    for r in range(a.rounds):
        for depth in a.depth:
            turns = [(run_kv2, m) for m in a.kv] + [(run_llama, k) for k in LLAMA_KV]
            for f, name in turns[r % len(turns):] + turns[:r % len(turns)]:
                f(a, name, depth, results)
                (out / "peers.json").write_text(json.dumps([[*k, v] for k, v in results.items()], indent=1))
    best = {k: max(v) for k, v in results.items()}
    cpu = next((l.split(":", 1)[1].strip() for l in open("/proc/cpuinfo") if l.startswith("model name")), "?")
    text = (f"{cpu}, {a.threads} threads, {datetime.date.today().isoformat()}, {pathlib.Path(a.model).name}; best of "
            f"{a.rounds} rounds x {a.repeat}, by turns\n\n{table(a, best, 'decode')}\n\n{table(a, best, 'prefill')}\n")
    (out / "peers.md").write_text(text)
    (out / "decode_over_depth.svg").write_text(plot(a, best))
    print(text)


if __name__ == "__main__":
    main()
