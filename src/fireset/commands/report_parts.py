"""Figures that several reports share: active pairs, and how many there are."""

from collections.abc import Sequence
from math import exp

import numpy as np

from fireset._util.gaussian import upper_tail
from fireset._util.text import percent
from fireset.network import ShiftedReLUNetwork
from fireset.reporting.figures import Figure, HeatMap, Section, Series

_SHOWN_SAMPLES, _SHOWN_NEURONS = 60, 120  # of the heat maps


def active_section(network: ShiftedReLUNetwork, fractions: Sequence[tuple[str, Sequence[float]]]) -> Section:
    """The fired fraction per iteration of each run, with P(z > b) and the paper's bound for the first iteration."""
    b = network.threshold
    most = max((len(values) for _, values in fractions), default=1)
    ends = [0, max(1, most - 1)]
    chance, bound = upper_tail(b), min(1.0, 2 * exp(-b * b / 2)) if b > 0 else 1.0
    series = [Series(name, list(range(len(values))), list(values)) for name, values in fractions]
    series += [
        Series("chance at initialization, P(z > b)", ends, [chance, chance], "dashed"),
        Series("bound of the sparsity lemma, 2 exp(−b²/2)", ends, [bound, bound], "dashed"),
    ]
    if fractions:
        first, last = fractions[0][1][0], fractions[0][1][-1]
        seen = f"{percent(first, 2)} of all pairs fire in the first iteration and {percent(last, 2)} in the last"
    else:
        seen = "No run has counted its fired pairs"
    return Section(
        "Active neurons",
        [
            f"A neuron fires for a sample when their inner product is above the threshold b = {b:.4g}. The paper's "
            f"sparsity lemma bounds how many of the neurons do so for a sample at initialization: at most "
            f"2 exp(−b²/2) = {percent(bound, 2)} of them, with high probability; {percent(chance, 2)} are expected to."
        ],
        figures=[
            Figure(
                "Fired fraction",
                "iteration",
                "share of all pairs",
                series,
                f"{seen}; {percent(chance, 2)} are expected at initialization, and the bound is {percent(bound, 2)}.",
            )
        ],
    )


def shown_neurons(width: int) -> np.ndarray:
    """The neurons that the heat maps show, drawn at random, ascending."""
    return np.sort(np.random.default_rng(0).permutation(width)[:_SHOWN_NEURONS])


def part_of(network: ShiftedReLUNetwork, neurons: np.ndarray) -> ShiftedReLUNetwork:
    """A copy of some neurons, as they are now."""
    return network.part(neurons).copy()


def fire_maps(before: ShiftedReLUNetwork, after: ShiftedReLUNetwork, X: np.ndarray) -> tuple[HeatMap, HeatMap]:
    """Active pairs before and after training: these neurons, on a sample of the rows."""
    samples = np.sort(np.random.default_rng(1).permutation(len(X))[:_SHOWN_SAMPLES])
    first, last = (network.fire_sets(X[samples]).toarray() for network in (before, after))
    size = f"{len(samples)} samples and {before.width} neurons, drawn at random"
    return (
        _fire_map("before training", first, f"{size}: {percent(first.mean(), 2)} of these pairs fire."),
        _fire_map(
            "after training",
            last,
            f"{size}, the same: {percent(last.mean(), 2)} of these pairs fire, and "
            f"{percent(np.mean(first != last), 2)} of them have changed their state.",
        ),
    )


def _fire_map(when: str, active: np.ndarray, alt: str) -> HeatMap:
    return HeatMap(f"Active pairs {when}", "neuron", "sample", active.astype(int).tolist(), alt)
