"""Sort many short lists of 16-bit numbers at once, one list in each lane of the vector registers.

A sorting network compares whole registers, without branches: 63 comparisons sort 32 lists of up to 16 numbers.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils

from fireset.kernels.masks import intrinsic, load_columns, splat

COLUMNS = 32  # lists
SLOTS = 16  # numbers of a list, at most
EMPTY = 0xFFFF  # fills the slots that are not used


@intrinsic
def sort_columns(typing_context, slots, start, rows):  # noqa: ARG001 - numba's form of an intrinsic
    """Sort each column of the block of ``SLOTS · COLUMNS`` uint16 from ``slots[start]`` on; write the transpose.

    Slot s of list c is ``slots[start + COLUMNS·s + c]`` before, and ``rows[SLOTS·c + s]`` after. Both arrays are
    contiguous.
    """

    def generate(context, builder, signature, arguments):
        slots_type, _, rows_type = signature.args
        slots, start, rows = arguments
        data = cgutils.gep(builder, context.make_array(slots_type)(context, builder, slots).data, start)
        target = context.make_array(rows_type)(context, builder, rows).data
        places = [ir.Constant(ir.IntType(64), COLUMNS * s) for s in range(SLOTS)]
        vectors = [
            load_columns(builder, cgutils.gep(builder, data, place), slots_type.dtype, COLUMNS) for place in places
        ]
        for a, b in _network(SLOTS):
            is_less = builder.icmp_unsigned("<", vectors[a], vectors[b])
            vectors[a], vectors[b] = (
                builder.select(is_less, vectors[a], vectors[b]),
                builder.select(is_less, vectors[b], vectors[a]),
            )
        for place, vector in zip(places, _transposed(builder, vectors), strict=True):
            pointer = builder.bitcast(cgutils.gep(builder, target, place), vector.type.as_pointer())
            builder.store(vector, pointer, align=2)
        return context.get_dummy_value()

    array = types.Array(types.uint16, 1, "C")
    return (types.none(array, types.intp, array), generate) if slots == rows == array else None


@intrinsic
def write_widened(typing_context, rows, start, base, target, end):  # noqa: ARG001 - numba's form of an intrinsic
    """Write ``target[end + s] = base + rows[start + s]`` for s < ``SLOTS``: from uint16 to uint32, without checks."""

    def generate(context, builder, signature, arguments):
        rows_type, *_, target_type, _ = signature.args
        rows, start, base, target, end = arguments
        source = cgutils.gep(builder, context.make_array(rows_type)(context, builder, rows).data, start)
        narrow = load_columns(builder, source, rows_type.dtype, SLOTS)
        wide = builder.zext(narrow, ir.VectorType(ir.IntType(32), SLOTS))
        place = cgutils.gep(builder, context.make_array(target_type)(context, builder, target).data, end)
        numbers = builder.add(wide, splat(builder, base, SLOTS))
        builder.store(numbers, builder.bitcast(place, numbers.type.as_pointer()), align=4)
        return context.get_dummy_value()

    fits = rows == types.Array(types.uint16, 1, "C") and target == types.Array(types.uint32, 1, "C")
    return (types.none(rows, types.intp, types.uint32, target, types.intp), generate) if fits else None


def _network(size: int) -> list[tuple[int, int]]:
    """Return the comparisons of Batcher's odd–even merge sort of a power of two of numbers."""
    pairs, run = [], 1
    while run < size:
        step = run
        while step >= 1:
            first = [i + j for j in range(step % run, size - step, 2 * step) for i in range(step)]
            pairs += [(i, i + step) for i in first if i // (2 * run) == (i + step) // (2 * run)]
            step //= 2
        run *= 2
    return pairs


def _transposed(builder, vectors):
    """Return the transpose of a matrix whose rows are the vectors, of which there is a power of two.

    Interleaving the first half of the matrix with the second one rotates the bits of all positions by one.
    """
    lanes, half = vectors[0].type.count, len(vectors) // 2
    halves = (range(lanes // 2), range(lanes // 2, lanes))
    masks = [
        ir.Constant(ir.VectorType(ir.IntType(32), lanes), [lane + side * lanes for lane in part for side in (0, 1)])
        for part in halves
    ]
    for _ in range(len(vectors).bit_length() - 1):
        vectors = [builder.shuffle_vector(vectors[k], vectors[k + half], mask) for k in range(half) for mask in masks]
    return vectors
