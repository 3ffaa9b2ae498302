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
    """The command line of a benchmark: ``--only PART`` and ``--quick`` print, a whole run is written down, too."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", choices=parts)
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args()
    results: dict = {"date": time.strftime("%Y-%m-%d"), "machine": machine(*versions)}
    for part, function in parts.items():
        if asked.only in (None, part):
            print(part, file=sys.stderr, flush=True)
            results[part] = function(asked.quick)
    print(to_markdown(results))
    if not asked.only and not asked.quick:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"{name}.json").write_text(json.dumps(results, indent=1))
        (RESULTS / f"{name}.md").write_text(to_markdown(results))
