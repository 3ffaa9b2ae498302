"""The running-time lemmas: counters of Algorithms 1 and 2, to the letter, beside the terms of ``iteration_terms``."""

import numpy as np
import pytest

from fireset import ShiftedReLUNetwork
from fireset.engines import StepRule, create
from fireset.theory import bounds
from support.checks import sphere

N, D = 10, 3
WIDTHS = (1_000, 10_000, 100_000)


def counts_of_a_step(name: str, m: int) -> dict[str, float]:
    """Counts of the third iteration: active pairs, neurons updated, and points and nodes visited by queries."""
    rng = np.random.default_rng(0)
    X, y = sphere(rng, N, D), rng.standard_normal((N, 1))
    network = ShiftedReLUNetwork.initialize(m, D, dtype="float64", seed=1)
    engine = create(name, radius=0)
    engine.start(network, X)
    work = engine.work
    for _ in range(2):
        engine.step(engine.forward() - y, StepRule(0.5))
    residual = engine.forward() - y
    visited, updated = work.inner_products + work.nodes_visited, work.refreshes
    engine.step(residual, StepRule(0.5))
    visited = work.inner_products + work.nodes_visited - visited
    return {"gradient": D * work.active_pairs, "updates": work.refreshes - updated, "queries": visited}


@pytest.mark.parametrize("name", ["weights", "data"])
def test_counts_are_below_the_terms_and_grow_no_faster(name):
    counted = [counts_of_a_step(name, m) for m in WIDTHS]
    terms = [bounds.iteration_terms(N, m, D, np.sqrt(0.4 * np.log(m)))[name] for m in WIDTHS]
    for term in ("gradient", "updates"):
        assert all(count[term] <= each[term] for count, each in zip(counted, terms, strict=True))
    # The index over 10 rows is a scan, the one over the neurons a tree with leaves of 64: constants of 10 and 64.
    assert all(count["queries"] <= 64 * each["queries"] for count, each in zip(counted, terms, strict=True))
    for term in ("gradient", "updates", "queries"):
        growth = np.log(counted[-1][term] / counted[0][term]) / np.log(WIDTHS[-1] / WIDTHS[0])
        proved = np.log(terms[-1][term] / terms[0][term]) / np.log(WIDTHS[-1] / WIDTHS[0])
        assert growth < proved + 0.05, term


@pytest.mark.parametrize("d", [2, 3, 4, 16])
def test_the_costs_are_the_sums_of_the_terms(d):
    terms = bounds.iteration_terms(50, 20_000, d, 1.5)
    costs = bounds.iteration_costs(50, 20_000, d, 1.5)
    assert costs["weights"] == pytest.approx(sum(terms["weights"].values()))
    assert costs["data"] == pytest.approx(terms["data"]["queries"] + terms["data"]["gradient"])
    assert costs["data"] < costs["dense"]
