#!/usr/bin/env python3
"""The main table of docs/quality.md and the winners per bit budget, from the JSON lines of scripts/quality.
  quality_tables.py DIR           prints them
  quality_tables.py DIR --write   puts them into docs/quality.md, between its two marks
Every number comes from a line; nothing is measured here."""
import json
import pathlib
import sys

DOC = pathlib.Path(__file__).parent.parent / "docs" / "quality.md"
MARKS = ("<!-- scripts/quality: begin -->\n", "<!-- scripts/quality: end -->\n")
BUDGETS = (2, 2.25, 2.5, 3, 3.5, 4.5, 8.5)  # a method's row counts where it has as many history bits or fewer
KLD = {"policy": "SmolLM2, debian-policy", "perl": "SmolLM2, perl-doc", "own": "needle-15m, its own text"}
NEEDLES = {"needle-4096": "4,096", "needle-32768": "32,768"}


def read(folder, name):
    """{method: line} of one part; empty where it was not run."""
    path = folder / f"{name}.jsonl"
    if not path.exists():
        return {}
    lines = [json.loads(text) for text in path.read_text().splitlines()]
    return {line["method"]: line for line in lines}


def bits(value):
    return f"{value:.4g}"


def kl(value):
    return "0" if value == 0 else f"{value:.4f}" if value >= 0.001 else f"{value:.5f}" if value >= 1e-4 else f"{value:.0e}"


def with_error(value, error):
    """A KL with its standard error, to as many digits as the KL itself is printed with."""
    text = kl(value)
    if value == 0 or error is None:
        return text
    if "e" in text:
        return f"{text} ± {error:.0e}"
    return f"{text} ± {error:.{len(text) - text.index('.') - 1}f}"


def difference(a, b):
    """mean KL of line a less that of b over the same positions, ± its standard error (src/eval/block_means.h)."""
    n, size = a["kl_tokens"], 256
    sizes = [min(size, n - i * size) for i in range(len(a["kl_blocks"]))]
    off = [x - y for x, y in zip(a["kl_blocks"], b["kl_blocks"])]
    mean = sum(s * d for s, d in zip(sizes, off)) / n
    if len(off) < 2:
        return mean, None
    square = sum((s * (d - mean)) ** 2 for s, d in zip(sizes, off))
    return mean, (square * len(off) / (len(off) - 1)) ** 0.5 / n


def table(head, rows):
    out = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return out + ["| " + " | ".join(row) + " |" for row in rows]


def score(line):
    return f"{with_error(line['kl_mean'], line.get('kl_se'))} · {100 * (1 - line['top1']):.1f} % · {line['ppl']:.2f}" if line else "–"


def exact(line):
    return f"{100 * line['exact']:.1f}" if line else "–"


def main_table(parts):
    """All methods, those with most bits first; a column for every part that was run."""
    methods = dict.fromkeys(m for part in parts.values() for m in part)
    columns = []  # head, text of a method's cell
    for dim, group in ((64, ("policy", "perl")), (128, ("own", *NEEDLES))):
        run = [n for n in group if parts[n]]
        if not run:
            continue
        at = {m: line["history_bits"] for n in run for m, line in parts[n].items()}
        for m in methods:
            methods[m] = methods[m] or at.get(m)
        columns.append((f"bits, d {dim}", lambda m, at=at: bits(at[m]) if m in at else "–"))
        for n in run:
            show, head = (score, KLD[n]) if n in KLD else (exact, f"exact, {NEEDLES[n]}")
            columns.append((head, lambda m, part=parts[n], show=show: show(part.get(m))))
    first = next(parts[n] for n in parts if parts[n])
    order = sorted(methods, key=lambda m: (-methods[m], first.get(m, {}).get("kl_mean", 0)))
    return table(["method", *(head for head, _ in columns)], [[f"`{m}`", *(cell(m) for _, cell in columns)] for m in order])


def winner(part, budget):
    """The method of least KL within a budget, and the best of those that are not ours."""
    fit = sorted((line for line in part.values() if line["history_bits"] <= budget + 1e-3), key=lambda l: l["kl_mean"])
    if not fit:
        return "–"
    best = fit[0]
    text = f"**`{best['method']}`** {kl(best['kl_mean'])}"
    others = [line for line in fit if line["method"].startswith("kv2") != best["method"].startswith("kv2")]
    if others:
        text += f"; `{others[0]['method']}` {kl(others[0]['kl_mean'])}"
        if "kl_blocks" in best:
            more, error = difference(others[0], best)
            text += f" (+{with_error(more, error)})"
    return text


def winners(parts):
    names = [n for n in KLD if parts[n]]
    rows = [[bits(b), *(winner(parts[n], b) for n in names)] for b in BUDGETS]
    return table(["history bits, at most", *(KLD[n] for n in names)], rows)


def provenance(parts):
    seen = {}
    for name in [*KLD, *NEEDLES]:
        for line in parts[name].values():
            run = line["run"]
            seen.setdefault((run["backend"], run.get("calibration", "none"), run["fingerprint"]), []).append(name)
    return [f"- {', '.join(dict.fromkeys(names))}: {backend}; calibration: {calibration}; model `{model}`"
            for (backend, calibration, model), names in seen.items()]


def text_of(parts):
    tokens = [f"{line['tokens'] + line['windows']:,} of {KLD[n]}" for n in KLD for line in list(parts[n].values())[:1]]
    out = []
    if tokens:
        out = ["KL(bf16 ‖ method), mean ± standard error, in nats · share of positions with another top-1 (flips) · perplexity. Tokens: "
               + "; ".join(tokens) + ".", ""]
    out += main_table(parts)
    counts = [f"{NEEDLES[n]} tokens: {line['questions']} questions of {line['haystacks']} haystack(s)"
              for n in NEEDLES for line in list(parts[n].values())[:1]]
    if counts:
        out += ["", "`exact`: multi-key uuid in haystacks of nothing but needles, percent (" + "; ".join(counts) + ")."]
    if tokens:
        out += ["", "Who wins at how many bits: the least KL, and after it the best of the other kind (ours, published), "
                    "with what it has more, position by position.", ""]
        out += winners(parts)
    out += ["", *provenance(parts)]
    return "\n".join(out) + "\n"


def main():
    if len(sys.argv) not in (2, 3) or sys.argv[2:] not in ([], ["--write"]):
        sys.exit(__doc__)
    folder = pathlib.Path(sys.argv[1])
    parts = {name: read(folder, name) for name in [*KLD, *NEEDLES]}
    if not any(parts.values()):
        sys.exit(f"{folder}: no lines of scripts/quality; parts are named {', '.join(parts)}, as in policy.jsonl")
    text = text_of(parts)
    if sys.argv[2:] == ["--write"]:
        before, _, rest = DOC.read_text().partition(MARKS[0])
        _, mark, after = rest.partition(MARKS[1])
        if not mark:
            sys.exit(f"{DOC}: the marks {MARKS} are not there")
        DOC.write_text(before + MARKS[0] + text + mark + after)
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
