#!/usr/bin/env python3
"""The demo's prompt: about 2,300 tokens of a text (whole paragraphs), then a question about it."""
import sys

WORDS = 1500  # SmolLM2 takes about 1.5 tokens per word of technical English


def main() -> None:
    taken, n = [], 0
    for paragraph in open(sys.argv[1], encoding="utf-8", errors="replace").read().split("\n\n"):
        taken.append(paragraph)
        n += len(paragraph.split())
        if n >= WORDS:
            break
    print("\n\n".join(taken))
    print("\nSummarize the text above in a few sentences. What is it about, and whom does it concern?")


if __name__ == "__main__":
    main()
