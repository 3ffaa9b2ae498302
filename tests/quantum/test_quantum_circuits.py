"""Circuits on Aer against the two-dimensional simulation, and the arithmetic oracle against integer arithmetic."""

import sys

import numpy as np
import pytest
from scipy.stats import chi2

from fireset import InputError
from fireset.quantum import success_probability
from fireset.quantum.arithmetic import FixedPoint, count_resources, half_space_oracle
from fireset.quantum.circuits import (
    diffusion,
    grover_circuit,
    index_qubits,
    phase_oracle,
    run_circuit,
    search_on_aer,
)
from support.checks import sphere


def pearson(hits: int, shots: int, chance: float) -> float:
    """χ² with one degree of freedom for the number of hits."""
    return (hits - shots * chance) ** 2 / (shots * chance * (1 - chance))


@pytest.mark.sweep(every=14)
@pytest.mark.parametrize("n_qubits", range(4, 11))
def test_aer_agrees_with_the_two_dimensional_simulation(n_qubits):
    """Success probability by iterations for several k: one χ² test over all, with fixed seeds."""
    shots, n_items = 1000, 2**n_qubits
    rng = np.random.default_rng(n_qubits)
    total, degrees = 0.0, 0
    for k in (1, 3, n_items // 8):
        marked = set(rng.permutation(n_items)[:k].tolist())
        oracle = phase_oracle(marked, n_qubits)
        best = round(np.pi / 4 * np.sqrt(n_items / k))
        for j in sorted({0, 1, best // 2, best} if k <= 3 else {0, 1, 2}):
            counts = run_circuit(grover_circuit(oracle, n_qubits, j), shots, seed=int(rng.integers(2**31)))
            hits = sum(count for item, count in counts.items() if item in marked)
            chance = success_probability(n_items, k, j)
            if shots * min(chance, 1 - chance) < 5:  # too rare for χ²
                assert abs(hits - shots * chance) <= 20
                continue
            total += pearson(hits, shots, chance)
            degrees += 1
    assert degrees >= 6
    assert chi2.sf(total, degrees) > 0.01


def test_marked_items_are_measured_equally_often():
    marked = [1, 6, 12, 15]
    counts = run_circuit(grover_circuit(phase_oracle(marked, 5), 5, 1), 4000, seed=2)
    hits = np.array([counts[item] for item in marked])
    assert chi2.sf(((hits - hits.mean()) ** 2 / hits.mean()).sum(), len(marked) - 1) > 0.01


@pytest.mark.parametrize("n_qubits", [1, 2, 4])
def test_oracle_and_diffusion_as_matrices(n_qubits):
    from qiskit.quantum_info import Operator

    n_items = 2**n_qubits
    for marked in ([], [0], [n_items - 1], list(range(0, n_items, 2))):
        signs = np.ones(n_items)
        signs[marked] = -1
        assert np.abs(Operator(phase_oracle(marked, n_qubits)).data - np.diag(signs)).max() < 1e-9
    about_the_mean = 2 * np.full((n_items, n_items), 1 / n_items) - np.eye(n_items)
    assert np.abs(Operator(diffusion(n_qubits)).data + about_the_mean).max() < 1e-9


@pytest.mark.sweep(every=6)
@pytest.mark.parametrize("marked", [[], [5], [0, 3, 9, 10]], ids=len)
def test_search_on_aer_finds_all(marked):
    result = search_on_aer(phase_oracle(marked, 4), 4, lambda item: item in marked, failure_probability=1e-3, seed=1)
    assert result.found.tolist() == marked
    assert result.measurements[0] > len(marked)
    assert result.oracle_calls[0] == result.iterations[0] + result.measurements[0]


# The arithmetic oracle


def applied(circuit, state: int) -> tuple[int, int]:
    """Apply a circuit of X, CX, CCX and Z to a basis state gate by gate; return state and sign."""
    sign = 1
    for step in circuit.data:
        *controls, target = (circuit.find_bit(qubit).index for qubit in step.qubits)
        on = all(state >> control & 1 for control in controls)
        if step.operation.name == "z":
            sign = -sign if state >> target & 1 else sign
        else:
            assert step.operation.name in ("x", "cx", "ccx")
            state ^= on << target
    return state, sign


SMALL = [
    (n_items, d, bits, threshold)
    for n_items, d, bits in ((1, 1, 2), (2, 2, 2), (3, 1, 3), (4, 2, 3), (8, 2, 4), (5, 3, 3), (13, 3, 5), (16, 4, 3))
    for threshold in (-0.6, 0.0, 0.4)
]


def rounded(n_items, d, bits, threshold) -> FixedPoint:
    rng = np.random.default_rng(n_items)
    return FixedPoint.round(sphere(rng, n_items, d), rng.standard_normal(d), threshold, bits)


@pytest.mark.parametrize("size", SMALL, ids=str)
def test_truth_table_on_every_basis_state(size):
    """For all indices, padding included: the sign is the predicate's, and every other qubit ends as |0⟩."""
    fixed = rounded(*size)
    oracle, expected = half_space_oracle(fixed), fixed.marks()
    for item in range(2 ** index_qubits(len(fixed.points))):
        state, sign = applied(oracle, item)
        assert state == item
        assert (sign < 0) == (item < len(expected) and expected[item])


@pytest.mark.parametrize("size", SMALL, ids=str)
def test_counted_resources_equal_those_of_the_circuit(size):
    fixed = rounded(*size)
    oracle, resources = half_space_oracle(fixed), count_resources(fixed)
    assert resources.qubits == oracle.num_qubits
    assert resources.toffolis == oracle.count_ops().get("ccx", 0)
    assert resources.t_count == 7 * resources.toffolis
    assert resources.lookup_toffolis <= resources.toffolis
    assert oracle.depth() <= resources.depth <= 2 * oracle.depth()


def test_truth_table_in_superposition_on_aer():
    """All indices at once on Aer, with phases from the state vector."""
    from qiskit import QuantumCircuit, transpile
    from qiskit_aer import AerSimulator

    fixed = rounded(4, 2, 2, 0.3)
    oracle = half_space_oracle(fixed)
    circuit = QuantumCircuit(oracle.num_qubits)
    circuit.h([0, 1])
    circuit.compose(oracle, inplace=True)
    circuit.save_statevector()
    simulator = AerSimulator(method="statevector")
    state = np.asarray(simulator.run(transpile(circuit, simulator, optimization_level=0)).result().get_statevector())
    expected = np.zeros(2**oracle.num_qubits)
    expected[:4] = np.where(fixed.marks(), -0.5, 0.5)
    assert 0 < fixed.marks().sum() < 4
    np.testing.assert_allclose(state, expected, atol=1e-9)


def test_search_with_the_arithmetic_oracle():
    fixed = rounded(4, 2, 2, 0.3)
    marks = fixed.marks()
    result = search_on_aer(half_space_oracle(fixed), 2, lambda i: bool(marks[i]), failure_probability=0.05, seed=3)
    assert result.found.tolist() == np.flatnonzero(marks).tolist()


def test_fixed_point_agrees_with_floats_away_from_the_threshold():
    rng = np.random.default_rng(0)
    points, normal = sphere(rng, 500, 6), rng.standard_normal(6)
    for bits in (6, 10, 16):
        fixed = FixedPoint.round(points, normal, 0.5, bits)
        margin = points @ normal - 0.5
        clear = np.abs(margin) > 12 * np.abs(normal).max() * 2.0 ** (1 - bits)  # d roundings of both factors
        assert clear.mean() > 0.4
        assert np.array_equal(fixed.marks()[clear], margin[clear] > 0)


def test_the_sum_does_not_overflow_for_the_largest_points():
    for threshold in (-50.0, 0.0, 3.0):
        fixed = FixedPoint.round(np.array([[1.0, -1.0], [-1.0, 1.0]]), np.array([1.0, -1.0]), threshold, 4)
        half = 2 ** (fixed.sum_bits - 1)
        sums = fixed.points @ np.array(fixed.normal) - fixed.threshold - 1
        assert (-half <= sums).all()
        assert (sums < half).all()


def test_resources_of_a_large_problem_need_no_circuit():
    rng = np.random.default_rng(0)
    resources = count_resources(FixedPoint.round(sphere(rng, 1000, 64), rng.standard_normal(64), 2.1, 8))
    assert 50 < resources.qubits < 100
    assert resources.lookup_toffolis > 10 * (resources.toffolis - resources.lookup_toffolis)


# Errors, and missing dependencies


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.ones((2, 2)), np.ones(2), 0.1, 1), "bits.*got 1"),
        ((np.ones((2, 2)), np.ones(3), 0.1, 4), r"normal.*got \(2, 2\) and \(3,\)"),
        ((np.full((2, 2), np.nan), np.ones(2), 0.1, 4), "finite"),
    ],
)
def test_invalid_fixed_point_arguments_raise(arguments, message):
    with pytest.raises(InputError, match=message):
        FixedPoint.round(*arguments)


def test_invalid_items_raise():
    with pytest.raises(InputError, match=r"marked.*got 8"):
        phase_oracle([8], 3)
    with pytest.raises(InputError, match=r"n_items.*got 0"):
        index_qubits(0)


@pytest.mark.parametrize("missing", ["qiskit", "qiskit_aer"])
def test_without_qiskit_circuits_raise_with_the_install_command(monkeypatch, missing):
    monkeypatch.setitem(sys.modules, missing, None)  # as if it were not installed
    fixed = rounded(4, 2, 3, 0.0)
    for attempt in (
        lambda: phase_oracle([1], 2),
        lambda: diffusion(2),
        lambda: half_space_oracle(fixed),
        lambda: search_on_aer(None, 2, bool),  # pyright: ignore[reportArgumentType]
    ):
        with pytest.raises(InputError, match=r"fireset\[quantum\]"):
            attempt()
    assert count_resources(fixed).qubits > 0  # needs no circuit


def test_an_old_qiskit_raises(monkeypatch):
    monkeypatch.setattr("qiskit.__version__", "1.4.2")
    with pytest.raises(InputError, match=r"got 1\.4\.2"):
        diffusion(2)
