"""Arithmetic oracle: ⟨normal, point_i⟩ > threshold in fixed point, reversibly, for all i in superposition.

Both versions of the algorithm use this circuit: points are the samples and the normal is a neuron (Version 2), or
points are the neurons and the normal is a sample (Version 1). Points are looked up by the index register; the normal is
part of the circuit. For each coordinate c:

1. look up: data ← p_ic, with a ladder of Toffolis per item and controlled NOTs for its set bits;
2. multiply and add: for each bit of the data, sum ← sum + bit·(normal_c·2^bit), with a ripple-carry adder (Cuccaro,
   Draper, Kutin and Moulton, "A new quantum ripple-carry addition circuit", 2004) on an addend controlled by that bit;
3. undo the look-up.

The sum starts at −(threshold + 1), so that its sign bit is 0 exactly for points in the half-space. A Z on that bit
flips the phase, and the computation is inverted. All gates are X, CX, CCX and Z. A Toffoli counts as seven T gates
(Nielsen and Chuang, section 4.3); the other gates are Clifford.
"""

from dataclasses import dataclass
from functools import cache
from math import floor, frexp
from typing import TYPE_CHECKING

import numpy as np

from fireset._util.errors import InputError
from fireset.quantum.circuits import index_qubits, require_qiskit

if TYPE_CHECKING:
    from qiskit import QuantumCircuit

T_PER_TOFFOLI = 7


@dataclass(frozen=True)
class FixedPoint:
    """Half-space predicate in integers: point i is marked if Σ_c normal_c·points_ic > threshold.

    Attributes
    ----------
    points : (N, d) int64 array
        In two's complement with ``bits`` bits.
    normal : list of d ints
    threshold : int
    """

    points: np.ndarray
    normal: list[int]
    threshold: int
    bits: int

    @classmethod
    def round(cls, points, normal, threshold: float, bits: int) -> "FixedPoint":
        """Round to ``bits`` bits per number, sign included; numbers are scaled by powers of 2."""
        points, normal = np.asarray(points, np.float64), np.asarray(normal, np.float64)
        if not 2 <= bits <= 24:
            raise InputError(f"bits must be from 2 to 24, got {bits}")
        if points.ndim != 2 or normal.shape != points.shape[1:] or not points.size:
            raise InputError(f"points (N, d) and normal (d,) must agree in d, got {points.shape} and {normal.shape}")
        if not (np.isfinite(points).all() and np.isfinite(normal).all() and np.isfinite(threshold)):
            raise InputError("points, normal and threshold must be finite")
        (whole, point_scale), (constants, normal_scale) = _scaled(points, bits), _scaled(normal, bits)
        return cls(
            whole, [int(c) for c in constants], floor(threshold * 2.0 ** (point_scale + normal_scale)), int(bits)
        )

    def marks(self) -> np.ndarray:
        """Return which points are marked, computed classically; (N,) bool."""
        return self.points @ np.array(self.normal, np.int64) > self.threshold

    @property
    def sum_bits(self) -> int:
        """Number of bits of the sum with which points of ``bits`` bits cannot overflow."""
        largest = sum(abs(c) for c in self.normal) << (self.bits - 1)
        low, high = -largest - self.threshold - 1, largest - self.threshold - 1
        return max(high.bit_length(), (-low - 1).bit_length()) + 1


def _scaled(numbers: np.ndarray, bits: int) -> tuple[np.ndarray, int]:
    """Return the integers nearest to numbers·2^scale, and the largest scale that ``bits`` bits with sign allow."""
    largest = float(np.abs(numbers).max())
    scale = bits - 1 - (frexp(largest)[1] if largest > 0 else 0)
    top = 2 ** (bits - 1)
    return np.clip(np.rint(np.ldexp(numbers, scale)), -top, top - 1).astype(np.int64), scale


@dataclass(frozen=True)
class Resources:
    """Qubits and gates of one oracle call. ``depth`` is an upper bound that counts a Toffoli as one layer."""

    qubits: int
    toffolis: int
    lookup_toffolis: int  # the part that a quantum memory (QRAM) would save
    depth: int

    @property
    def t_count(self) -> int:
        return T_PER_TOFFOLI * self.toffolis


def half_space_oracle(fixed: FixedPoint) -> "QuantumCircuit":
    """Build the circuit: index register first, then work registers, which start and end as |0⟩.

    Padding items after the last point are not marked.
    """
    require_qiskit()
    from qiskit import AncillaRegister, QuantumCircuit, QuantumRegister

    q = index_qubits(len(fixed.points))
    index, data = QuantumRegister(q, "index"), QuantumRegister(fixed.bits, "data")
    total, addend = QuantumRegister(fixed.sum_bits, "sum"), QuantumRegister(fixed.sum_bits, "addend")
    carry, ladder = AncillaRegister(1, "carry"), AncillaRegister(max(0, q - 1), "ladder")
    registers = [index, data, total, addend, carry, *([ladder] if q > 1 else [])]
    compute = QuantumCircuit(*registers)
    _xor(compute, -fixed.threshold - 1, total)
    for column, constant in zip(fixed.points.T, fixed.normal, strict=True):
        if constant == 0:
            continue
        _look_up(compute, column, index, data, ladder)
        for bit, (addition, low) in enumerate(_additions(constant, fixed.bits, fixed.sum_bits)):
            _controlled_xor(compute, addition, data[bit], addend)
            compute.compose(_adder(fixed.sum_bits - low), [*addend[low:], *total[low:], carry[0]], inplace=True)
            _controlled_xor(compute, addition, data[bit], addend)
        _look_up(compute, column, index, data, ladder)
    oracle = QuantumCircuit(*registers, name="half-space")
    oracle.compose(compute, inplace=True)
    oracle.x(total[-1])
    oracle.z(total[-1])
    oracle.x(total[-1])
    oracle.compose(compute.inverse(), inplace=True)
    for item in _marked_padding(fixed):
        flag = _select(oracle, item, index, ladder)
        oracle.z(flag)
        _unselect(oracle, item, index, ladder)
    return oracle


def count_resources(fixed: FixedPoint) -> Resources:
    """Count the resources of ``half_space_oracle`` without building it, in O(N·d).

    Qubits and Toffolis are exact; the depth is the sum over the parts. The circuit for a whole data set would have
    millions of gates.
    """
    q, width = index_qubits(len(fixed.points)), fixed.sum_bits
    used = [c for c, constant in enumerate(fixed.normal) if constant]
    select = 2 * (q - 1)  # Toffolis that select an item and undo it
    set_bits = _set_bits(fixed.points[:, used], fixed.bits)
    loaded = int(np.count_nonzero(set_bits))
    lookups = 4 * loaded * select  # each is applied and undone, in the computation and in its inverse
    adders = depth = 0
    for c in used:
        for addition, low in _additions(fixed.normal[c], fixed.bits, width):
            adders += 2 * _adder_toffolis(width - low)
            depth += 2 * (2 * addition.bit_count() + _adder_depth(width - low))
    depth += 4 * int(set_bits.sum()) + 4 * loaded * (select + 2) + 5
    padding = len(_marked_padding(fixed))
    return Resources(
        qubits=q + fixed.bits + 2 * width + 1 + max(0, q - 1),
        toffolis=lookups + adders + padding * select,
        lookup_toffolis=lookups,
        depth=depth + padding * (select + 3),
    )


def _marked_padding(fixed: FixedPoint) -> range:
    """Return the padding items that the arithmetic would mark: their sum 0 is above a negative threshold."""
    n_items = len(fixed.points)
    return range(n_items, 2 ** index_qubits(n_items) if fixed.threshold < 0 else n_items)


def _set_bits(points: np.ndarray, bits: int) -> np.ndarray:
    """Count the bits that are 1 in each number."""
    return np.bitwise_count(points & (2**bits - 1))


def _additions(constant: int, bits: int, width: int) -> list[tuple[int, int]]:
    """Return for each bit of a point its addend modulo 2^width and the number of trailing zeros of that addend."""
    additions = []
    for bit in range(bits):
        weight = -constant if bit == bits - 1 else constant  # the highest bit of two's complement is negative
        addition = (weight << bit) % 2**width
        additions.append((addition, (addition & -addition).bit_length() - 1))
    return additions


def _look_up(circuit, column: np.ndarray, index, data, ladder) -> None:
    """Apply data ← data xor column[index]. It is its own inverse."""
    for item, number in enumerate(column.tolist()):
        if number:
            flag = _select(circuit, item, index, ladder)
            _controlled_xor(circuit, number % 2 ** len(data), flag, data)
            _unselect(circuit, item, index, ladder)


def _select(circuit, item: int, index, ladder):
    """Compute and return a qubit that is 1 exactly if the index is ``item``."""
    _xor(circuit, ~item, index)
    flag = index[0]
    for bit, rung in zip(index[1:], ladder, strict=True):
        circuit.ccx(flag, bit, rung)
        flag = rung
    return flag


def _unselect(circuit, item: int, index, ladder) -> None:
    """Undo ``_select``."""
    rungs = [index[0], *ladder]
    for k in reversed(range(len(ladder))):
        circuit.ccx(rungs[k], index[k + 1], ladder[k])
    _xor(circuit, ~item, index)


def _xor(circuit, number: int, register) -> None:
    """Apply register ← register xor number."""
    for k, qubit in enumerate(register):
        if number >> k & 1:
            circuit.x(qubit)


def _controlled_xor(circuit, number: int, control, register) -> None:
    """Apply register ← register xor number if ``control`` is 1."""
    for k, qubit in enumerate(register):
        if number >> k & 1:
            circuit.cx(control, qubit)


@cache
def _adder(width: int) -> "QuantumCircuit":
    """|a⟩|b⟩|0⟩ ↦ |a⟩|a + b mod 2^width⟩|0⟩ on 2·width + 1 qubits; 2(width − 1) Toffolis."""
    from qiskit import QuantumCircuit

    circuit = QuantumCircuit(2 * width + 1, name="add")
    a, b = list(range(width)), list(range(width, 2 * width))
    carries = [2 * width, *a]  # the carry into bit k is stored in bit k − 1 of a
    for k in range(width - 1):
        circuit.cx(a[k], b[k])
        circuit.cx(a[k], carries[k])
        circuit.ccx(carries[k], b[k], a[k])
    circuit.cx(carries[width - 1], b[width - 1])
    circuit.cx(a[width - 1], b[width - 1])
    for k in reversed(range(width - 1)):
        circuit.ccx(carries[k], b[k], a[k])
        circuit.cx(a[k], carries[k])
        circuit.cx(carries[k], b[k])
    return circuit


def _adder_toffolis(width: int) -> int:
    return 2 * (width - 1)


def _adder_depth(width: int) -> int:
    """Upper bound: three gates down and three up for each bit except the last, which has two."""
    return 6 * (width - 1) + 2
