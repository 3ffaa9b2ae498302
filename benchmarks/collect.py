"""One page of all results: benchmarks/results/README.md, from the Markdown that each benchmark has left there.

    python benchmarks/collect.py

The accuracy table of the README, between two comments, is replaced by the summary of the accuracy benchmark.
"""

import re
from pathlib import Path

from parts import RESULTS

PARTS = {
    "compare": "make bench-compare",
    "fit": "make bench-fit",
    "accuracy": "make bench-accuracy",
    "scale": "make bench-scale",
    "step": "make bench-step",
    "nn": "make bench-nn",
    "predict": "make bench-predict",
    "sums": "make bench-sums",
    "index": "make bench-index",
    "theory": "make bench-theory",
}


def page(folder: Path) -> str:
    """The parts that are there, in order, each a level down, with the command that repeats it."""
    lines = ["# Results", "", "Collected by `make bench`. Each part names its date, its machine and its command.", ""]
    for name, command in PARTS.items():
        file = folder / f"{name}.md"
        if file.exists():
            heading, _, rest = re.sub(r"^#", "##", file.read_text(), flags=re.MULTILINE).partition("\n")
            lines += [heading, "", f"`{command}`", "", rest.strip(), ""]
    return "\n".join(lines)


def with_accuracy(readme: str, summary: str) -> str:
    """Replace what is between the comments ``accuracy`` and ``/accuracy``; a text without them is unchanged."""
    pattern = re.compile(r"(<!-- accuracy -->\n).*?(<!-- /accuracy -->)", re.DOTALL)
    return pattern.sub(lambda found: f"{found[1]}\n{summary.strip()}\n\n{found[2]}", readme)


if __name__ == "__main__":
    summary = RESULTS / "accuracy-summary.md"
    readme = RESULTS.parent.parent / "README.md"
    if summary.exists():
        readme.write_text(with_accuracy(readme.read_text(), summary.read_text()))
    (RESULTS / "README.md").write_text(page(RESULTS))
    print(RESULTS / "README.md")
