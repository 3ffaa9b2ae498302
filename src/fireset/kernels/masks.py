"""Sixty-four comparisons at a time, as bits: how a few hits among many numbers are found without a branch for each.

LLVM does not make this out of a plain loop. On AVX2 and AVX-512 the comparison and the packing of its result into bits
are a few instructions; elsewhere LLVM writes what the machine has.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.cpython.unsafe.numbers import trailing_zeros
from numba.extending import intrinsic

LANES = 64

first_bit = trailing_zeros  # the number of zeros below the lowest bit set


@intrinsic
def count_bits(typing_context, bits):  # noqa: ARG001 - numba's form of an intrinsic
    """How many bits of an int64 are set."""

    def generate(context, builder, signature, arguments):  # noqa: ARG001
        return builder.ctpop(arguments[0])

    return types.int64(types.int64), generate


@intrinsic
def above_bits(typing_context, row, start, threshold):  # noqa: ARG001 - numba's form of an intrinsic
    """An int64 whose bit k says whether ``row[start + k] > threshold``, for k below ``LANES``.

    ``row`` is a contiguous array with at least ``start + LANES`` entries, which is not checked, and ``threshold`` has
    its type.
    """
    if not (isinstance(row, types.Array) and row.ndim == 1 and row.layout == "C" and row.dtype == threshold):
        return None

    def generate(context, builder, signature, arguments):
        row_type, start_type, _ = signature.args
        row, start, threshold = arguments
        element = context.get_value_type(row_type.dtype)
        vector = ir.VectorType(element, LANES)
        data = context.make_array(row_type)(context, builder, row).data
        index = context.cast(builder, start, start_type, types.intp)
        place = builder.bitcast(cgutils.gep(builder, data, index), vector.as_pointer())
        numbers = builder.load(place, align=row_type.dtype.bitwidth // 8)
        limits = ir.Constant(vector, ir.Undefined)
        for lane in range(LANES):
            limits = builder.insert_element(limits, threshold, ir.Constant(ir.IntType(32), lane))
        return builder.bitcast(builder.fcmp_ordered(">", numbers, limits), ir.IntType(LANES))

    return types.int64(row, start, threshold), generate
