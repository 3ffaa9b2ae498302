"""Run the kinds of tests in turns, each in a separate process, and print the counts of comparisons and the findings.

    python -m adversary [--minutes 30] [--only KIND] [--count N] [--seed S]

Cases have seeds S, S + 1, …; without ``--seed`` the clock chooses S. A finding is printed with the seed that repeats it
and no other. Exit code 1 if there is any.
"""

import argparse
import faulthandler
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

KINDS = ("training", "indexes", "kills", "files", "estimators", "commands", "threads", "extremes")
TURN = 60.0  # seconds of a kind before the next kind
LONGEST = 900.0  # seconds of a case, after which it counts as hanging
FEWEST = {"files": 200}  # cases in a turn, where a process takes long to begin


def run_here(kind: str, seed: int, count: int, seconds: float) -> None:
    """Run cases in a child process; print one line when a case begins and one with its result."""
    warnings.simplefilter("ignore")
    run_case = import_module(f"adversary.{kind}").run_case
    until = time.monotonic() + seconds
    for done in range(count):
        if time.monotonic() > until and done >= FEWEST.get(kind, 1):
            break
        _tell({"begun": seed + done})
        faulthandler.dump_traceback_later(LONGEST, exit=True)
        counts: Counter[str] = Counter()
        finding = None
        try:
            run_case(seed + done, counts)
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            reason = " ".join(str(error).split())[-500:]
            finding = f"{type(error).__name__}: {reason} ({Path(place.filename).name}:{place.lineno})"
        faulthandler.cancel_dump_traceback_later()
        _tell({"counts": counts, "finding": finding})


def _tell(facts: dict[str, Any]) -> None:
    print(json.dumps(facts), flush=True)


class Tally:
    """Counts and findings that the child processes have printed."""

    def __init__(self) -> None:
        self.cases: Counter[str] = Counter()
        self.counts: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
        self.findings: list[str] = []
        self._started = self._shown = time.monotonic()

    def run_child(self, kind: str, seed: int, count: int, seconds: float) -> int:
        """Run some cases of a kind in a child process; return their number. A crash of the child is a finding."""
        command = [sys.executable, "-m", "adversary", "--child", "--only", kind, "--seed", str(seed)]
        command += ["--count", str(count), "--minutes", str(seconds / 60)]
        path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path[1:]])
        environment = {**os.environ, "PYTHONPATH": path}
        begun, last = 0, seed
        with tempfile.TemporaryFile("w+") as errors:
            child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment)
            assert child.stdout is not None
            for line in child.stdout:
                facts = json.loads(line)
                if "begun" in facts:
                    begun, last = begun + 1, facts["begun"]
                    continue
                self.cases[kind] += 1
                self.counts[kind].update(facts["counts"])
                if facts["finding"]:
                    self._found(kind, last, facts["finding"])
                self._show_progress()
            if child.wait():
                errors.seek(0)
                reason = " ".join(errors.read().split())[-1500:]
                self._found(kind, last, f"the process ended with {child.returncode}: {reason}")
        return max(begun, 1)

    def _found(self, kind: str, seed: int, finding: str) -> None:
        self.findings.append(f"{kind}, seed {seed}: {finding}")
        repeat = f"make adversary ONLY={kind} SEED={seed} COUNT=1"
        print(f"FOUND by {kind}, seed {seed}: {finding}\n  to repeat it: {repeat}", flush=True)

    def _show_progress(self) -> None:
        now = time.monotonic()
        if now > self._shown + TURN:
            self._shown = now
            passed = f"{now - self._started:.0f} s: {dict(self.cases)}, {len(self.findings)} findings"
            print(passed, file=sys.stderr, flush=True)

    def show(self) -> None:
        for kind in KINDS:
            if self.cases[kind]:
                parts = ", ".join(f"{name} {count:,}" for name, count in sorted(self.counts[kind].items()))
                print(f"{kind}: {self.cases[kind]:,} cases ({parts})")
        minutes = (time.monotonic() - self._started) / 60
        print(f"{len(self.findings)} findings in {minutes:.1f} minutes", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="adversary", description="See CONTRIBUTING.md.")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--only", choices=KINDS)
    parser.add_argument("--count", type=int, help="cases of each kind, however long they take")
    parser.add_argument("--seed", type=int, help="of the first case")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        run_here(options.only, options.seed, options.count, 60 * options.minutes)
        return
    kinds = [options.only] if options.only else list(KINDS)
    first = options.seed if options.seed is not None else int(time.time())
    extent = f"{options.count:,} cases of each kind" if options.count else f"{options.minutes:g} minutes"
    print(f"seeds from {first} on, {extent}", flush=True)
    tally = Tally()
    until = time.monotonic() + 60 * options.minutes
    seeds = dict.fromkeys(kinds, first)
    while True:
        for kind in kinds:
            left = options.count - (seeds[kind] - first) if options.count else 1 << 30
            seconds = 1e9 if options.count else min(TURN, max(1.0, until - time.monotonic()))
            if left > 0:
                seeds[kind] += tally.run_child(kind, seeds[kind], left, seconds)
        if all(seed - first >= options.count for seed in seeds.values()) if options.count else time.monotonic() > until:
            break
    tally.show()
    sys.exit(bool(tally.findings))


if __name__ == "__main__":
    main()
