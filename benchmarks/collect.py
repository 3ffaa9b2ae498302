"""One page of all results: benchmarks/results/README.md, from the Markdown that each benchmark has left there.

python benchmarks/collect.py
"""

import re
from pathlib import Path

from parts import RESULTS

PARTS = {
    "compare": "make bench-compare",
    "fit": "make bench-fit",
    "accuracy": "make bench-accuracy",
    "step": "make bench-step",
    "nn": "make bench-nn",
    "predict": "make bench-predict",
    "sums": "make bench-sums",
    "index": "make bench-index",
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


if __name__ == "__main__":
    (RESULTS / "README.md").write_text(page(RESULTS))
    print(RESULTS / "README.md")
