"""Work of kernels and of a fit against a committed baseline, within 10 %.

Times depend on the machine and its load, counts do not. ``make work-counts`` writes the baseline.
"""

import json

import pytest

from fireset.hsr.base import IndexWork
from fireset.training.solvers.linear_solver import KernelSystem
from support.work_counts import BASELINE, FITS, KERNELS, SLOW, Counts, digits_counts, index_counts

TOLERANCE = 0.1
EXPECTED: dict[str, Counts] = json.loads(BASELINE.read_text(encoding="utf-8"))


def regressions(name: str, found: Counts) -> list[str]:
    """Return what differs from the baseline by more than the tolerance: less work is a new baseline, too."""
    expected = EXPECTED[name]
    assert found.keys() == expected.keys()
    return [
        f"{name}, {what}: {found[what]:,} instead of {count:,}"
        for what, count in expected.items()
        if abs(found[what] - count) > TOLERANCE * count
    ]


@pytest.mark.parametrize("name", [*KERNELS, *FITS, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_work_is_that_of_the_baseline(name):
    assert regressions(name, {**KERNELS, **FITS, **SLOW}[name]()) == []


def test_every_count_has_a_baseline():
    assert set(EXPECTED) == {*KERNELS, *FITS, *SLOW}
    assert all(sum(counts.values()) > 0 for counts in EXPECTED.values())


def test_twice_the_points_of_an_index_are_found(monkeypatch):
    add = IndexWork.add

    def add_twice(self, **more):
        more["points_tested"] = 2 * more.get("points_tested", 0)
        add(self, **more)

    monkeypatch.setattr(IndexWork, "add", add_twice)
    assert regressions("index partition-tree", index_counts("partition-tree", 20_000, 3))


def test_twice_the_products_of_a_fit_are_found(monkeypatch):
    apply = KernelSystem.apply

    def apply_twice(self, vector):
        apply(self, vector)
        return apply(self, vector)

    monkeypatch.setattr(KernelSystem, "apply", apply_twice)
    assert any("tangent_products" in line for line in regressions("digits", digits_counts()))
