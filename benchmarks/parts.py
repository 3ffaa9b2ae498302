"""A benchmark in parts: run all of them, or one, and write what a whole run found to benchmarks/results/."""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

RESULTS = Path(__file__).parent / "results"


def machine(*versions: str) -> str:
    """The processor, the threads used and the versions that matter."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "unknown processor")
    named = [f"Python {sys.version.split()[0]}", f"NumPy {np.__version__}", *versions]
    return f"{model}, {os.environ['OMP_NUM_THREADS']} threads; {', '.join(named)}."


def run_parts(
    name: str, parts: dict[str, Callable[[bool], list]], to_markdown: Callable[[dict], str], *versions: str
) -> None:
    """Run the command line of a benchmark; write the results of a whole run, or of one part with ``--write``.

    ``--only PART --write`` replaces one part of the existing results and notes when and where it was measured.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", choices=parts)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--write", action="store_true", help="with --only: replace this part of the written results")
    options = parser.parse_args()
    results: dict = {"date": time.strftime("%Y-%m-%d"), "machine": machine(*versions)}
    for part, function in parts.items():
        if options.only in (None, part):
            print(part, file=sys.stderr, flush=True)
            results[part] = function(options.quick)
    print(to_markdown(results))
    if options.quick or (options.only and not options.write):
        return
    RESULTS.mkdir(exist_ok=True)
    written = RESULTS / f"{name}.json"
    if options.only and written.exists():
        earlier = json.loads(written.read_text())
        measured = f"{results['date']}, {results['machine']}"
        parts_measured = earlier.get("measured_later", {}) | {options.only: measured}
        results = {**earlier, options.only: results[options.only], "measured_later": parts_measured}
    written.write_text(json.dumps(results, indent=1))
    later = [f"Part `{part}` was measured on {when}" for part, when in results.get("measured_later", {}).items()]
    (RESULTS / f"{name}.md").write_text(
        "\n".join([to_markdown(results).rstrip("\n"), *(f"\n{line}" for line in later), ""])
    )
