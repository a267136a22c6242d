#!/usr/bin/env python3
"""All of `make bench`: this machine's limits, kv2's kernels as shares of them, then kv2 and llama.cpp on the same file,
shapes and threads by turns, and at the end one table of targets, with an SVG plot.

usage: compare_cpu.py KV2 LLAMA_BENCH MODEL [--threads N] [--depth 0,2048,...] [--kv oscar2] [--rounds N]
                      [--calibration FILE] [--out DIR] [--minutes N] [--plot-only]

At every depth kv2 (`kv2 bench --json`, which checks first that prefill and single steps agree) runs before each of
llama-bench's KV types (flash attention on), so that a busy moment of the machine hits all of them alike. The best of
all repeats counts: on a shared machine it is the one with the fewest neighbours. Every line of JSON is kept in
OUT/bench.jsonl; --plot-only draws the table and the plot from there again. llama.cpp's deep cells take minutes each; those
that --minutes leaves no time for stay empty.
"""
import argparse
import collections
import datetime
import json
import math
import os
import pathlib
import subprocess
import sys
import time

LLAMA_KV = ["f16", "q8_0", "q4_0"]
MIB = 1 << 20


class Rows:
    """JSON lines as they come: kept in a file, and found again by part and name."""

    def __init__(self, path, fresh):
        self.path, self.rows = path, []
        if fresh:
            path.write_text("")
        else:
            self.rows = [json.loads(line) for line in path.read_text().splitlines()]

    def add(self, row):
        self.rows.append(row)
        with self.path.open("a") as f:
            f.write(json.dumps(row) + "\n")

    def best(self, part, name, key="best_tokens_per_s"):
        found = [r[key] for r in self.rows if r["part"] == part and name in r["name"] and key in r]
        return max(found) if found else None

    def time(self, part, name):
        found = [r["best_s"] for r in self.rows if r["part"] == part and name in r["name"]]
        return min(found) if found else None


def run(command, timeout=None):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=timeout).stdout


def kv2(a, rows, what, *options):
    start = time.time()
    command = [a.kv2, "-q", "bench", *what, "--threads", str(a.threads), "--json", *options]
    for line in run(command).splitlines():
        row = json.loads(line)
        rows.add(row)
        show(row)
    return time.time() - start


def show(r):
    """One row for people."""
    if r["part"] == "memory":
        more = r["resident"] - r["weights"] - r["kv"]
        print(f"memory   {r['name']:<44} {r['resident'] / MIB:.1f} MiB resident = {r['weights'] / MIB:.1f} of weights + "
              f"{r['kv'] / MIB:.1f} of KV as planned ({r['kv_tokens'] / MIB:.1f} of it tokens) + {more / MIB:.1f}", flush=True)
        return
    text = f"{r['part']:<8} {r['name']:<46} {r.get('best_s', 0) * 1e3:10.3f} ms"
    if "spread" in r:
        text += f"  spread {100 * r['spread']:5.0f} %"
    if "cores" in r:
        text += f"  {r['cores']:.1f} cores"
    if "best_tokens_per_s" in r:
        text += f"  {r['best_tokens_per_s']:8.1f} tokens/s"
    elif "bytes" in r:
        text += f"  {r['bytes'] / r['best_s'] / 1e9:7.1f} GB/s"
    if "operations" in r:
        text += f"  {r['operations'] / r['best_s'] / 1e9:7.1f} Gop/s"
    if "error" in r:
        text += f"  error {r['error']:.1e}"
    print(text + ("  " + r["check"] if r.get("check") else ""), flush=True)


def llama(a, rows, kv, depth):
    left = a.end - time.time()
    repeat = a.repeat if depth <= 2048 else min(a.repeat, 2)  # filling the context takes longer than all repeats
    try:
        if left < 10:
            raise subprocess.TimeoutExpired("", left)
        out = run_llama(a, kv, depth, repeat, left)
    except subprocess.TimeoutExpired:
        print(f"llama.cpp {kv} depth {depth}: no time left", flush=True)
        return
    for r in json.loads(out):
        part = "prefill" if r["n_prompt"] else "decode"
        best = max(r["samples_ts"])
        row = {"part": part, "name": f"llama.cpp {kv} depth {depth},", "best_tokens_per_s": best,
               "best_s": (r["n_prompt"] or r["n_gen"]) / best, "samples": r["samples_ts"]}
        rows.add(row)
        show(row)


def run_llama(a, kv, depth, repeat, timeout):
    return run([a.llama, "-m", a.model, "-p", str(a.prompt), "-n", str(a.steps), "-d", str(depth), "-t", str(a.threads), "-fa",
               "1", "-ctk", kv, "-ctv", kv, "-r", str(repeat), "-o", "json"], timeout)


def measure(a, rows):
    kv2(a, rows, ["limits"])
    kv2(a, rows, ["attend", "linear", "demote"])
    kv2(a, rows, ["limits"])  # again: a limit that a neighbour took a part of would flatter what is measured against it
    with_calibration = ["--kv", a.kv] + (["--calibration", a.calibration] if a.calibration else [])
    kv2(a, rows, ["batch", a.model], "--depth", "4096", "--batch", "1,8", "--repeat", "5", *with_calibration)
    kv2(a, rows, ["profile", a.model], "--depth", str(a.depth[-1]), "--batch", "1", *with_calibration)
    for turn in range(a.rounds):
        for depth in a.depth:
            for kv in LLAMA_KV[turn % 3:] + LLAMA_KV[:turn % 3]:
                kv2(a, rows, ["prefill", "decode", a.model], "--depth", str(depth), "--prompt", str(a.prompt), "--steps",
                    str(a.steps), "--repeat", str(a.repeat), *with_calibration)
                llama(a, rows, kv, depth)


class Results:
    def __init__(self, a, rows):
        self.a, self.rows = a, rows

    def speed(self, engine, part, depth):
        name = f"{engine} depth {depth},"
        return self.rows.best(part, name)

    def ours(self, part, depth):
        return self.rows.best(part, f"{self.a.kv} depth {depth},") or self.rows.best(part, f" depth {depth}, 1 seq")

    def theirs(self, part, depth, kv):
        return self.rows.best(part, f"llama.cpp {kv} depth {depth},")

    def over(self, part, depth, kv=None):
        """kv2 over llama.cpp's `kv`, or over the best of them."""
        them = [self.theirs(part, depth, k) for k in ([kv] if kv else LLAMA_KV)]
        them = [x for x in them if x]
        us = self.ours(part, depth)
        return us / max(them) if us and them else None


def number(x, digits=1):
    return "—" if x is None else f"{x:.{digits}f}"


def speeds(r, part):
    depths = r.a.depth
    lines = [f"| {part}, tokens/s at depth | " + " | ".join(str(d) for d in depths) + " |", "|---" * (len(depths) + 1) + "|",
             f"| kv2 {r.a.kv} | " + " | ".join(number(r.ours(part, d)) for d in depths) + " |"]
    for k in LLAMA_KV:
        lines.append(f"| llama.cpp {k} | " + " | ".join(number(r.theirs(part, d, k)) for d in depths) + " |")
    for k in LLAMA_KV:
        lines.append(f"| kv2 ÷ llama.cpp {k} | " + " | ".join(number(r.over(part, d, k)) for d in depths) + " |")
    return "\n".join(lines)


def bound(rows, part, name):
    """Seconds that a row's bytes and its arithmetic take at this machine's limits: the best of `limits`, the level of the
    memory that the row says it reads from."""
    def limit(key, what):
        found = [x[key] / x["best_s"] for x in rows.rows if x["part"] == "limits" and what in x["name"] and key in x]
        return max(found) if found else None

    row = next((x for x in rows.rows if x["part"] == part and name in x["name"]), None)
    if not row or not limit("bytes", "read memory"):
        return None, None
    arithmetic = sum(row[key] / limit("operations", f"{kind} ") for kind in ["int8 dot", "bf16 dot", "f32"]
                     if (key := f"operations_{kind.split()[0]}") in row)
    return row["bytes"] / limit("bytes", f"read {row.get('level', 'memory')}"), arithmetic


def targets(r):
    """What was promised, and what this run gave."""
    rows, deep = r.rows, r.a.depth[-1]
    out = []

    def line(what, target, value, unit="×", less=False):
        reached = "" if value is None else "yes" if (value <= target if less else value >= target) else "**no**"
        out.append(f"| {what} | {'≤' if less else '≥'} {target:g} {unit} | {number(value, 2)} | {reached} |")

    for k, t in zip(LLAMA_KV, [12, 5, 8]):
        line(f"decode at {deep} against llama.cpp's {k}", t, r.over("decode", deep, k))
    line("decode at 2048 against the best of them", 3, r.over("decode", 2048))
    line("decode at 0", 1, r.over("decode", 0))
    line("prefill of 512 at 0 against the best of them", 3, r.over("prefill", 0))
    line(f"prefill of 512 at {deep}", 5, r.over("prefill", deep))
    for shape, depth in [("SmolLM2-135M", 8192), ("needle-15m", 65536)]:
        time_of = lambda kv: rows.time("attend", f"{shape}: {kv} at {depth}")
        us = time_of("oscar2")
        for kv, t in [("bf16", 2), ("int4", 1)]:
            line(f"attention alone, {shape} at {depth}, oscar2 against our {kv}", t, time_of(kv) / us if us and time_of(kv) else None)
        reading, arithmetic = bound(rows, "attend", f"{shape}: oscar2 at {depth}")
        what = f"reading {number(reading and 1e3 * reading, 2)} ms, arithmetic {number(arithmetic and 1e3 * arithmetic, 2)} ms"
        line(f"the same, share of the nearer limit ({what})", 50,
             100 * max(reading, arithmetic) / us if us and reading and arithmetic else None, "%")
    one, eight = rows.best("batch", "4096, 1 seq"), rows.best("batch", "4096, 8 seq")
    line("8 sequences at 4,096 in a batch against one", 3, eight / one if one and eight else None)
    memory = [x for x in rows.rows if x["part"] == "memory" and f"depth {deep}" in x["name"]]
    if memory:
        m = memory[-1]
        line(f"resident at {deep} over weights and KV as planned", 40, (m["resident"] - m["weights"] - m["kv"]) / MIB, "MiB", True)
    step = rows.time("profile", "a step")
    demote = [x for x in rows.rows if x["part"] == "profile" and "demote" in x["name"]]
    if step and demote:
        line("demotion, share of a decode step", 3, float(demote[-1]["check"].split()[0]), "%", True)
    return "\n".join(["| what | target | here | reached |", "|---|---|---|---|", *out])


def plot(r):
    """Tokens per second of decode over depth, logarithmic, as SVG."""
    a = r.a
    engines = [(f"kv2 {a.kv}", lambda d: r.ours("decode", d))]
    engines += [(f"llama.cpp {k}", lambda d, k=k: r.theirs("decode", d, k)) for k in LLAMA_KV]
    colours = ["#0b6e4f", "#c1440e", "#e07a2f", "#8d6a9f"]
    width, height, left, top, right, bottom = 720, 400, 64, 44, 150, 48
    points_of = {e: [(d, f(d)) for d in a.depth if f(d)] for e, f in engines}
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
    for (e, _), colour in zip(engines, colours):
        points = points_of[e]
        if not points:
            continue
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
    p.add_argument("--depth", type=lambda t: sorted(int(d) for d in t.split(",")), default=[0, 2048, 7424])
    p.add_argument("--kv", default="oscar2")
    p.add_argument("--rounds", type=int, default=1)
    p.add_argument("--repeat", type=int, default=3)
    p.add_argument("--steps", type=int, default=16)
    p.add_argument("--prompt", type=int, default=512)
    p.add_argument("--calibration", default="")
    p.add_argument("--out", default="build/bench")
    p.add_argument("--minutes", type=float, default=12)
    p.add_argument("--plot-only", action="store_true")
    a = p.parse_args()
    out = pathlib.Path(a.out)
    out.mkdir(parents=True, exist_ok=True)
    rows = Rows(out / "bench.jsonl", not a.plot_only)
    start, load = time.time(), os.getloadavg()[0]
    a.end = start + 60 * a.minutes
    if not a.plot_only:
        try:
            measure(a, rows)
        except KeyboardInterrupt:  # what there is makes a table, too
            print("interrupted", file=sys.stderr)
    r = Results(a, rows)
    cpu = next((l.split(":", 1)[1].strip() for l in open("/proc/cpuinfo") if l.startswith("model name")), "?")
    text = (f"{cpu}, {a.threads} threads, {datetime.date.today().isoformat()}, {pathlib.Path(a.model).name}; best of {a.rounds} x "
            f"{a.repeat} and more, by turns; {time.time() - start:.0f} s; "
            f"{load:.1f} other processes were running when it began\n\n{speeds(r, 'decode')}\n\n{speeds(r, 'prefill')}\n\n{targets(r)}\n")
    (out / "peers.md").write_text(text)
    (out / "decode_over_depth.svg").write_text(plot(r))
    print("\n" + text)


if __name__ == "__main__":
    main()
