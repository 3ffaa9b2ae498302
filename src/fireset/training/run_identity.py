"""What tells one training run from another, and in which words a difference is told.

Settings and fingerprints decide: a run in which they are the same goes on where the other ended. A fingerprint says
that the data differ, and not how; so shapes and the options that the user gave are noted beside it. Notes decide
nothing, but where fingerprints differ, those that differ as well say why.
"""

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from math import isclose
from typing import Any

import numpy as np

from fireset._util.checks import is_number
from fireset._util.parallel import parallel_map
from fireset.distributed.process_group import ProcessGroup

FIRST_WEIGHTS = "first weights"
_HASHED_AT_ONCE = 1 << 18  # weights
_SHAPES = ("rows", "inputs")
# What is said where a fingerprint differs, unless one of these settings and shapes differs, too, and so explains it.
_FINGERPRINTS = {
    "X": ("another table", {"dtype", "rows", "inputs"}),
    "y": ("another target", {"outputs", "rows"}),
    "sample_weight": ("other weights", {"rows"}),
    "validation": ("other rows held out", {"rows"}),
    FIRST_WEIGHTS: ("another seed or start", {"width", "dtype", "outputs", "inputs"}),
}


@dataclass(frozen=True)
class RunIdentity:
    """A run as its checkpoints describe it.

    Attributes
    ----------
    settings : mapping
        By the names that users know, JSON-able, with fingerprints of the data and the first weights.
    notes : mapping of texts
        Shapes of the data ("rows", "inputs"), and the user's options, some of them other words for a setting
        (``--width`` for "width").
    """

    settings: Mapping[str, Any]
    notes: Mapping[str, str]

    def differences(self, other: "RunIdentity") -> list[str]:
        """How the run that wrote a checkpoint (there) differs from this one (here), in words; empty if not at all."""
        # Plain descent goes without a name, and earlier versions did not write the scale down.
        here: dict[str, Any] = {"solver": "gradient", **self.settings}
        there = {"solver": "gradient", "output_scale": here.get("output_scale"), **other.settings}
        differ = [name for name in {**here, **there} if here.get(name) != there.get(name)]
        if "solver" in differ:  # what only one of the two solvers knows needs no mention
            differ = [name for name in differ if name in here and name in there]
        if "dtype" in differ:  # nor does a threshold that was rounded to it
            differ = [name for name in differ if not _same_but_rounded(here.get(name), there.get(name))]
        noted = [name for name in self.notes if other.notes.get(name, self.notes[name]) != self.notes[name]]
        prints = [name for name in differ if name in _FINGERPRINTS]
        options = [name for name in noted if name not in _SHAPES and (prints or _setting(name) in differ)]
        shapes = [name for name in noted if name in _SHAPES and prints and not options]
        covered = {_setting(name) for name in options}
        settings = [name for name in differ if name not in _FINGERPRINTS and name not in covered]
        reasons = {*differ, *shapes}
        unexplained = [name for name in prints if not options and not _FINGERPRINTS[name][1] & reasons]
        return [
            *(_values(name, other.notes[name], self.notes[name]) for name in options),
            *(_values(name, there.get(name), here.get(name)) for name in settings),
            *(_values(name, other.notes[name], self.notes[name]) for name in shapes),
            *(f"{name} ({_FINGERPRINTS[name][0]})" for name in unexplained),
        ]


def _setting(option: str) -> str:
    """The setting that an option is another word for: learning_rate for --learning-rate."""
    return option.removeprefix("--").replace("-", "_")


def _same_but_rounded(first: Any, second: Any) -> bool:
    return is_number(first) and is_number(second) and isclose(first, second, rel_tol=2.0**-23)


def _values(name: str, there: Any, here: Any) -> str:
    """Both of them, brief and printable whatever a file holds."""
    there, here = (value if isinstance(value, str) else reprlib.repr(value) for value in (there, here))
    return f"{name!r}"[1:-1] + f" ({there[:200]!r} there, {here[:200]!r} here)"


def row_hashes(weights: np.ndarray) -> np.ndarray:
    """64 bits for each row, which change when the row does; eight bytes instead of a copy of the weights."""
    words = weights.view(f"u{weights.itemsize}")
    keys = np.random.Philox(key=0).random_raw(weights.shape[1]) | np.uint64(1)
    hashes = np.empty(len(weights), np.uint64)

    def hash_some(lo: int) -> None:
        # Each word times an odd number of its own, with the high half mixed into the low one before the sum: the
        # product alone would let differences in high bits vanish.
        mixed = words[lo : lo + at_once].astype(np.uint64)
        mixed += np.uint64(0x9E3779B97F4A7C15)
        for shift in (np.uint64(32), np.uint64(29)):
            mixed *= keys
            mixed ^= mixed >> shift
        hashes[lo : lo + at_once] = mixed.sum(axis=1, dtype=np.uint64)

    at_once = max(1, _HASHED_AT_ONCE // weights.shape[1])
    parallel_map(hash_some, range(0, len(weights), at_once))
    return hashes


def whole_fingerprint(hashes: np.ndarray, first: int, group: ProcessGroup) -> str:
    """Of the rows of all workers in their order, however many workers they are spread over."""
    placed = hashes * (2 * np.arange(first, first + len(hashes), dtype=np.uint64) + np.uint64(1))
    placed ^= placed >> np.uint64(31)
    low, high = placed & np.uint64(2**32 - 1), placed >> np.uint64(32)
    return f"{group.all_reduce_sum(int(high.sum())) % 2**32:08x}{group.all_reduce_sum(int(low.sum())) % 2**32:08x}"
