#!/usr/bin/env python3
"""The demo's prompt: about 2,300 tokens of a text, whole paragraphs, for the model to go on with."""
import sys

WORDS = 1500  # SmolLM2 takes about 1.5 tokens per word of technical English


def main() -> None:
    taken, n = [], 0
    for paragraph in open(sys.argv[1], encoding="utf-8", errors="replace").read().split("\n\n"):
        n += len(paragraph.split())
        if taken and n > WORDS:
            break
        taken.append(paragraph)
    print("\n\n".join(taken) + "\n")


if __name__ == "__main__":
    main()
