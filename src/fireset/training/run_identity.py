"""The identity of a training run: what must be equal to resume it, and messages about differences.

Settings and fingerprints decide whether a checkpoint can be resumed. A fingerprint shows that data differ, but not how.
Shapes and the options of the user are therefore stored as notes, which only explain differing fingerprints.
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

INITIAL_WEIGHTS = "initial weights"
_HASH_CHUNK_ENTRIES = 1 << 18  # weights that one task hashes
_SHAPES = ("rows", "inputs")
# Explanation of a differing fingerprint, unless one of these settings and shapes differs, too.
_FINGERPRINTS = {
    "X": ("another table", {"dtype", "rows", "inputs"}),
    "y": ("another target", {"outputs", "rows"}),
    "sample_weight": ("other weights", {"rows"}),
    "validation": ("other validation rows", {"rows"}),
    INITIAL_WEIGHTS: ("another seed or start", {"width", "dtype", "outputs", "inputs"}),
}


@dataclass(frozen=True)
class RunIdentity:
    """The description of a run in its checkpoints.

    Attributes
    ----------
    settings : mapping
        Settings by public name, as JSON values, with fingerprints of the data and of the initial weights.
    notes : mapping of texts
        Shapes of the data ("rows", "inputs") and options of the user. An option such as ``--width`` may be another
        name of a setting.
    """

    settings: Mapping[str, Any]
    notes: Mapping[str, str]

    def differences(self, other: "RunIdentity") -> list[str]:
        """Describe how ``other``, the run of a checkpoint, differs from this one; empty if it does not."""
        here, there = self.settings, other.settings
        differ = [name for name in {**here, **there} if here.get(name) != there.get(name)]
        if "solver" in differ:  # settings of only one of the solvers need no mention
            differ = [name for name in differ if name in here and name in there]
        if "dtype" in differ:  # nor do numbers that were rounded to it
            differ = [name for name in differ if not _equal_up_to_rounding(here.get(name), there.get(name))]
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
    """Return the setting of an option: learning_rate of --learning-rate."""
    return option.removeprefix("--").replace("-", "_")


def _equal_up_to_rounding(first: Any, second: Any) -> bool:
    return is_number(first) and is_number(second) and isclose(first, second, rel_tol=2.0**-23)


def _values(name: str, there: Any, here: Any) -> str:
    """Return both values, short and printable for any content of a file."""
    there, here = (value if isinstance(value, str) else reprlib.repr(value) for value in (there, here))
    return f"{name!r}"[1:-1] + f" ({there[:200]!r} there, {here[:200]!r} here)"


def row_hashes(weights: np.ndarray) -> np.ndarray:
    """Return a 64-bit hash of each row, (m,): it detects changed rows at 8 bytes each instead of a copy."""
    words = weights.view(f"u{weights.itemsize}")
    keys = np.random.Philox(key=0).random_raw(weights.shape[1]) | np.uint64(1)
    hashes = np.empty(len(weights), np.uint64)

    def hash_chunk(lo: int) -> None:
        # Each word is multiplied by its own odd number, and the high half of the product is mixed into the low one:
        # without that, differences in high bits would be lost in the sum.
        mixed = words[lo : lo + chunk].astype(np.uint64)
        mixed += np.uint64(0x9E3779B97F4A7C15)
        for shift in (np.uint64(32), np.uint64(29)):
            mixed *= keys
            mixed ^= mixed >> shift
        hashes[lo : lo + chunk] = mixed.sum(axis=1, dtype=np.uint64)

    chunk = max(1, _HASH_CHUNK_ENTRIES // weights.shape[1])
    parallel_map(hash_chunk, range(0, len(weights), chunk))
    return hashes


def combined_hash(hashes: np.ndarray, numbers: np.ndarray, group: ProcessGroup) -> str:
    """Return a hash of the rows of all workers, given their ``numbers``, for any number of workers."""
    placed = hashes * (2 * numbers.astype(np.uint64) + np.uint64(1))
    placed ^= placed >> np.uint64(31)
    low, high = placed & np.uint64(2**32 - 1), placed >> np.uint64(32)
    return f"{group.all_reduce_sum(int(high.sum())) % 2**32:08x}{group.all_reduce_sum(int(low.sum())) % 2**32:08x}"
