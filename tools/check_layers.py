#!/usr/bin/env python3
"""Fails when a file of src/, include/ or apps/ includes upwards or sideways. The dictionary is the architecture."""
import pathlib
import re
import sys

DIRECT = {  # folder -> folders right below it; what is below those may be included too
    "base": [],
    "quant": ["base"],
    "ops": ["quant"],
    "cpu": ["ops"],
    "cuda": ["ops"],
    "formats": ["base"],
    "text": ["base"],
    "cache": ["ops", "formats"],
    "model": ["cache"],
    "engine": ["model", "text"],
    "calibrate": ["engine"],
    "eval": ["calibrate"],
    "server": ["calibrate"],
    "capi": ["calibrate"],
}
ONE_FILE = {"src/engine/device.cpp": ["cpu", "cuda"]}  # the only file that sees the backends


def below(folder: str) -> set[str]:
    out = {folder}
    for f in DIRECT[folder]:
        out |= below(f)
    return out


def main() -> int:
    root = pathlib.Path(__file__).resolve().parent.parent
    wrong = []
    for path in sorted([*root.glob("src/**/*"), *root.glob("include/**/*")]):
        if path.suffix not in {".h", ".cpp", ".cc", ".cu", ".cuh"}:
            continue
        rel = path.relative_to(root).as_posix()
        public = rel.startswith("include/")
        folder = None if public else rel.split("/")[1]
        if not public and folder not in DIRECT:
            wrong.append(f"{rel}: folder {folder} is not in tools/check_layers.py")
            continue
        # tests may look down freely, which is what below() allows anyway, and at the backends they run on
        allowed = set() if public else below(folder) | set(ONE_FILE.get(rel, []))
        if rel.endswith("_test.cpp") and folder in {"cache", "model", "engine", "calibrate", "eval"}:
            allowed |= {"cpu"}
        for n, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            m = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
            if not m or m[1].startswith("kv2/") or "/" not in m[1]:
                continue
            target = m[1].split("/")[0]
            if target in DIRECT and target not in allowed:
                wrong.append(f"{rel}:{n}: {folder or 'include/kv2'} may not include {m[1]}")
    print("\n".join(wrong) or f"layers: all includes point down ({len(DIRECT)} folders)")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
