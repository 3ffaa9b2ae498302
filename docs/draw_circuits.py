"""Draw the circuits of docs/quantum.md.

python docs/draw_circuits.py docs
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from qiskit import QuantumCircuit

from fireset.quantum import phase_success, success_probability
from fireset.quantum.arithmetic import FixedPoint, half_space_oracle
from fireset.quantum.circuits import diffusion, grover_circuit, phase_oracle, run_circuit

ACTIVE, NEAR, INK = "#d1495b", "#edae49", "#30363d"
STYLE = {"name": "clifford", "fontsize": 11, "subfontsize": 8}


def draw_search(path: Path) -> None:
    """Draw two iterations among 8 items with item 5 marked: oracle and diffusion, gate by gate."""
    circuit = QuantumCircuit(3, 3)
    circuit.h(range(3))
    for _ in range(2):
        circuit.barrier(label="oracle")
        circuit.compose(phase_oracle([5], 3), inplace=True)
        circuit.barrier(label="diffusion")
        circuit.compose(diffusion(3), inplace=True)
    circuit.barrier(label="measure")
    circuit.measure(range(3), range(3))
    circuit.draw("mpl", style=STYLE, fold=-1, plot_barriers=True).savefig(path, dpi=110, bbox_inches="tight")


def draw_oracle(path: Path) -> None:
    """Draw the smallest arithmetic oracle: two points with one coordinate of two bits."""
    fixed = FixedPoint.round(np.array([[0.5], [-0.25]]), np.array([0.5]), 0.1, 2)
    oracle = half_space_oracle(fixed)
    oracle.draw("mpl", style=STYLE, fold=26).savefig(path, dpi=90, bbox_inches="tight")


def draw_agreement(path: Path) -> None:
    """Draw the success probability by iterations, by formula and on Aer, and that of a phase by its size."""
    n_qubits, shots = 8, 500
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4), layout="constrained")
    for k, color in ((1, ACTIVE), (4, NEAR), (16, INK)):
        marked = np.random.default_rng(k).permutation(2**n_qubits)[:k].tolist()
        oracle = phase_oracle(marked, n_qubits)
        fine = np.arange(0, 25)
        left.plot(fine, [success_probability(2**n_qubits, k, j) for j in fine], color=color, lw=1, alpha=0.6)
        shown = range(0, 25, 2)
        rates = []
        for j in shown:
            counts = run_circuit(grover_circuit(oracle, n_qubits, j), shots, seed=j)
            rates.append(sum(counts.get(item, 0) for item in marked) / shots)
        left.plot(shown, rates, "o", color=color, label=f"k = {k}", ms=5)
        sizes = np.arange(1, 26)
        chances = [float(phase_success(size, 2**n_qubits, k)) for size in sizes]
        right.plot(sizes, chances, color=color, label=f"k = {k}")
    left.set(
        xlabel="Grover iterations j", ylabel="a marked item is measured", title="256 items: lines formula, dots Aer"
    )
    right.set(xlabel="M", title="A phase: j uniform below M", ylabel="a marked item is measured")
    right.axhline(0.5, color=INK, lw=0.6, ls="--")
    right.legend(frameon=False)  # serves both
    for axes in (left, right):
        axes.set_ylim(0, 1.02)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)


def main(folder: str) -> None:
    draw_search(Path(folder) / "quantum-search.png")
    draw_oracle(Path(folder) / "quantum-oracle.png")
    draw_agreement(Path(folder) / "quantum-agreement.png")


if __name__ == "__main__":
    main(sys.argv[1])
