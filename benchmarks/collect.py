"""All pages with measured figures, from the stored results: ``make figures``.

``benchmarks/results/README.md`` is collected from the Markdown that each benchmark has written there. The marked blocks
of README and docs are made by ``figures.py``.
"""

import re
from pathlib import Path

from figures import RESULTS, Results, write_pages

PARTS = {
    "compare": "make bench-compare",
    "fit": "make bench-fit",
    "accuracy": "make bench-accuracy",
    "scale": "make bench-scale",
    "step": "make bench-step",
    "nn": "make bench-nn",
    "predict": "make bench-predict",
    "load": "make bench-load",
    "memory": "make bench-memory",
    "solvers": "make bench-solvers",
    "sums": "make bench-sums",
    "index": "make bench-index",
    "theory": "make bench-theory",
    "quantum": "make bench-quantum",
    "distributed": "make bench-distributed",
}


def page(folder: Path) -> str:
    """The parts that are there, in order, each a level down, with the command that repeats it."""
    lines = ["# Results", "", "Collected by `make figures`. Each part names its date, its machine and its command.", ""]
    for name, command in PARTS.items():
        file = folder / f"{name}.md"
        if file.exists():
            heading, _, rest = re.sub(r"^#", "##", file.read_text(), flags=re.MULTILINE).partition("\n")
            lines += [heading, "", f"`{command}`", "", rest.strip(), ""]
    return "\n".join(lines)


if __name__ == "__main__":
    (RESULTS / "README.md").write_text(page(RESULTS))
    write_pages(Results())
