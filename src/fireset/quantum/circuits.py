"""Grover's search as Qiskit circuits, and their simulation with Aer.

An index register of q qubits has N = 2^q items. If there are fewer items, the others are padding that no oracle marks:
the marked set is the same, N is up to twice as large. Found items are removed from any oracle by a second phase flip.

Qiskit is an optional dependency; the rest of fireset works without it.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import numpy as np

from fireset._util.errors import InputError
from fireset.quantum.search import SearchResults, make_schedule

if TYPE_CHECKING:
    from qiskit import QuantumCircuit


def require_qiskit() -> None:
    """Raise InputError with the install command if Qiskit 2 or its simulator is missing."""
    try:
        import qiskit
        import qiskit_aer  # noqa: F401 - checks that it is installed
    except ImportError as error:
        raise InputError(
            "circuits need Qiskit and Qiskit Aer, which are not installed; run: pip install 'fireset[quantum]'"
        ) from error
    if int(qiskit.__version__.split(".")[0]) < 2:
        raise InputError(f"circuits need Qiskit 2, got {qiskit.__version__}; run: pip install 'fireset[quantum]'")


def index_qubits(n_items: int) -> int:
    """Return q ≥ 1, the number of qubits of the smallest register for ``n_items`` items."""
    if n_items < 1:
        raise InputError(f"n_items must be at least 1, got {n_items}")
    return max(1, (n_items - 1).bit_length())


def phase_oracle(marked: Iterable[int], n_qubits: int) -> "QuantumCircuit":
    """Build the oracle |i⟩ ↦ −|i⟩ for the given marked items, with a controlled Z for each."""
    require_qiskit()
    from qiskit import QuantumCircuit

    circuit = QuantumCircuit(n_qubits, name="oracle")
    for item in marked:
        if not 0 <= item < 2**n_qubits:
            raise InputError(f"marked must contain numbers from 0 to {2**n_qubits - 1}, got {item}")
        _flip_phase(circuit, int(item), range(n_qubits))
    return circuit


def diffusion(n_qubits: int) -> "QuantumCircuit":
    """Build 2|s⟩⟨s| − 1 up to a global sign, the reflection about the uniform superposition |s⟩."""
    require_qiskit()
    from qiskit import QuantumCircuit

    circuit = QuantumCircuit(n_qubits, name="diffusion")
    circuit.h(range(n_qubits))
    _flip_phase(circuit, 0, range(n_qubits))
    circuit.h(range(n_qubits))
    return circuit


def grover_circuit(
    oracle: "QuantumCircuit", n_qubits: int, iterations: int, found: Iterable[int] = ()
) -> "QuantumCircuit":
    """Build a search: uniform superposition, ``iterations`` times oracle and diffusion, measurement of the index.

    The first ``n_qubits`` qubits of the oracle are the index; its other qubits start and end as |0⟩.
    """
    require_qiskit()
    from qiskit import QuantumCircuit

    circuit = QuantumCircuit(oracle.num_qubits, n_qubits)
    index = range(n_qubits)
    unmark_found, reflection = phase_oracle(found, n_qubits), diffusion(n_qubits)
    circuit.h(index)
    for _ in range(iterations):
        circuit.compose(oracle, inplace=True)
        circuit.compose(unmark_found, index, inplace=True)
        circuit.compose(reflection, index, inplace=True)
    circuit.measure(index, index)
    return circuit


def run_circuit(circuit: "QuantumCircuit", shots: int, seed: int) -> dict[int, int]:
    """Run on Aer's state vector simulator and return the number of measurements of each item."""
    require_qiskit()
    from qiskit import transpile
    from qiskit_aer import AerSimulator

    simulator = AerSimulator(method="statevector")
    transpiled = transpile(circuit, simulator, optimization_level=0)
    counts = simulator.run(transpiled, shots=shots, seed_simulator=seed).result().get_counts()
    return {int(bits, 2): count for bits, count in counts.items()}


def search_on_aer(
    oracle: "QuantumCircuit",
    n_qubits: int,
    check: Callable[[int], bool],
    *,
    failure_probability: float = 1e-6,
    seed: int = 0,
) -> SearchResults:
    """Find all marked items of an oracle with the schedule of ``fireset.quantum.search``, one circuit per phase.

    Parameters
    ----------
    oracle : QuantumCircuit
        Flips the phase of the marked items; its first ``n_qubits`` qubits are the index.
    check : function
        The classical predicate: whether a measured item is marked.
    """
    sizes = make_schedule(2**n_qubits, failure_probability).sizes
    rng = np.random.default_rng(seed)
    found: list[int] = []
    iterations = measurements = calls_since_find = phase = 0
    while phase < len(sizes):
        j = int(rng.integers(sizes[phase]))
        circuit = grover_circuit(oracle, n_qubits, j, found)
        (item,) = run_circuit(circuit, shots=1, seed=int(rng.integers(2**31)))
        iterations += j
        measurements += 1
        calls_since_find += j + 1
        if item not in found and check(item):
            found.append(item)
            phase = calls_since_find = 0
        else:
            phase += 1
    return SearchResults(
        np.array([0, len(found)]),
        np.array(sorted(found), np.int64),
        np.array([iterations]),
        np.array([measurements]),
        np.array([calls_since_find]),
    )


def _flip_phase(circuit: "QuantumCircuit", item: int, qubits: Iterable[int]) -> None:
    """Apply |item⟩ ↦ −|item⟩; qubit 0 is the lowest bit."""
    from qiskit.circuit.library import ZGate

    *controls, target = qubits
    target_is_zero = not item >> len(controls) & 1
    if target_is_zero:
        circuit.x(target)
    if controls:
        circuit.append(
            ZGate().control(len(controls), ctrl_state=item % 2 ** len(controls), annotated=False), [*controls, target]
        )
    else:
        circuit.z(target)
    if target_is_zero:
        circuit.x(target)
