"""Intrinsics that compare many numbers with a threshold at once and return the results as bits of an integer.

A few hits among many numbers are then found without a branch for each number. LLVM does not compile a plain loop to
this. On AVX2 and AVX-512 the comparison and the packing of its result into bits take a few instructions. Arguments are
not checked.
"""

from typing import Any

import llvmlite.binding
from llvmlite import ir
from numba import extending, types
from numba.core import cgutils
from numba.cpython.unsafe.numbers import trailing_zeros

LANES = 64
HAS_COMPRESS = bool(llvmlite.binding.get_host_cpu_features().get("avx512f"))  # whether ``compress_…`` can be used
_COMPRESSED = 16  # numbers of a register

first_bit: Any = trailing_zeros  # index of the lowest bit that is set


def intrinsic(function) -> Any:
    """``numba.extending.intrinsic``, typed as Any: callers omit the typing context, which pyright would report."""
    return extending.intrinsic(function)


@intrinsic
def count_bits(typing_context, bits):  # noqa: ARG001 - numba's form of an intrinsic
    """Return the number of bits of an int64 that are set."""

    def generate(context, builder, signature, arguments):  # noqa: ARG001
        return builder.ctpop(arguments[0])

    return types.int64(types.int64), generate


@intrinsic
def above_bits(typing_context, row, start, threshold):  # noqa: ARG001 - numba's form of an intrinsic
    """Return an int64 whose bit k is set if ``row[start + k] > threshold``, for k < ``LANES``.

    ``row`` is contiguous, with at least ``start + LANES`` entries, and ``threshold`` has its type.
    """
    if not (isinstance(row, types.Array) and row.ndim == 1 and row.layout == "C" and row.dtype == threshold):
        return None

    def generate(context, builder, signature, arguments):
        row_type, start_type, _ = signature.args
        row, start, threshold = arguments
        data = context.make_array(row_type)(context, builder, row).data
        index = context.cast(builder, start, start_type, types.intp)
        numbers = load_columns(builder, cgutils.gep(builder, data, index), row_type.dtype, LANES)
        return _bits_above(builder, numbers, threshold)

    return types.int64(row, start, threshold), generate


def _columns_above(lanes: int):
    """Create ``columns_above`` for blocks of ``lanes`` columns, which must be a compile-time constant."""

    @intrinsic
    def columns_above(typing_context, blocks, which, coefficients, threshold):  # noqa: ARG001
        """Return an int64 whose bit k is set if ``Σ_j coefficients[j] · blocks[which, j, k] > threshold``.

        ``blocks`` is contiguous, (any, coefficients.size, lanes); all arguments have one floating-point type. A view of
        the block as argument would cost more than the comparison, because views count references.
        """
        fits = isinstance(blocks, types.Array) and blocks.ndim == 3 and blocks.layout == "C"
        if not fits or blocks.dtype != threshold or coefficients != types.Array(blocks.dtype, 1, "C"):
            return None

        def generate(context, builder, signature, arguments):
            blocks_type, which_type, coefficients_type, _ = signature.args
            blocks, which, coefficients, threshold = arguments
            totals = column_totals(
                context, builder, blocks_type, blocks, which_type, which, coefficients_type, coefficients, lanes
            )
            return builder.zext(_bits_above(builder, totals, threshold), ir.IntType(64))

        return types.int64(blocks, which, coefficients, threshold), generate

    return columns_above


@intrinsic
def row_above_16(typing_context, blocks, which, row, threshold):  # noqa: ARG001
    """Return an int64 whose bit k is set if ``blocks[which, row, k] > threshold``; contiguous blocks of 16 columns."""
    if not (isinstance(blocks, types.Array) and blocks.ndim == 3 and blocks.layout == "C"):
        return None

    def generate(context, builder, signature, arguments):
        blocks_type, which_type, row_type, _ = signature.args
        blocks, which, row, threshold = arguments
        array = context.make_array(blocks_type)(context, builder, blocks)
        rows = cgutils.unpack_tuple(builder, array.shape)[1]
        start = builder.mul(context.cast(builder, which, which_type, types.intp), rows)
        start = builder.add(start, context.cast(builder, row, row_type, types.intp))
        start = builder.mul(start, ir.Constant(start.type, 16))
        numbers = load_columns(builder, cgutils.gep(builder, array.data, start), blocks_type.dtype, 16)
        return builder.zext(_bits_above(builder, numbers, threshold), ir.IntType(64))

    return types.int64(blocks, which, row, blocks.dtype), generate


@intrinsic
def prefetch(typing_context, blocks, which):  # noqa: ARG001
    """Prefetch up to eight cache lines of ``blocks[which]`` of a contiguous array."""

    def generate(context, builder, signature, arguments):
        blocks_type, which_type = signature.args
        blocks, which = arguments
        array = context.make_array(blocks_type)(context, builder, blocks)
        size = cgutils.unpack_tuple(builder, array.strides)[0]
        byte = ir.IntType(8).as_pointer()
        start = builder.mul(context.cast(builder, which, which_type, types.intp), size)
        data = builder.gep(builder.bitcast(array.data, byte), [start])
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        for line in range(0, 8 * 64, 64):
            with builder.if_then(builder.icmp_signed(">", size, ir.Constant(size.type, line))):
                place = builder.gep(data, [ir.Constant(size.type, line)])
                builder.call(function, [place, number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.none(blocks, which), generate


@intrinsic
def compress_32(typing_context, numbers, which, bits, target, end):  # noqa: ARG001
    """Write ``numbers[which, k]`` for the set bits k < 32 to ``target[end]``, ``target[end + 1]``, …

    Arrays are int32 and contiguous. Writes up to 32 entries, of which those beyond the number of set bits are not
    defined. Needs ``HAS_COMPRESS``.
    """
    fits = isinstance(numbers, types.Array) and numbers.ndim == 2 and numbers.layout == target.layout == "C"
    if not fits or not numbers.dtype == target.dtype == types.int32:
        return None

    def generate(context, builder, signature, arguments):
        numbers_type, which_type, _, target_type, _ = signature.args
        numbers, which, bits, target, end = arguments
        array = context.make_array(numbers_type)(context, builder, numbers)
        columns = cgutils.unpack_tuple(builder, array.shape)[1]
        start = builder.mul(context.cast(builder, which, which_type, types.intp), columns)
        target = context.make_array(target_type)(context, builder, target).data
        for first in range(0, 32, _COMPRESSED):
            place = builder.add(start, ir.Constant(start.type, first))
            values = load_columns(builder, cgutils.gep(builder, array.data, place), types.int32, _COMPRESSED)
            end = _compress(builder, values, bits, first, target, end)
        return context.get_dummy_value()

    return types.none(numbers, which, types.int64, target, types.intp), generate


@intrinsic
def compress_range(typing_context, first, bits, target, end):  # noqa: ARG001
    """Write ``first + k`` for the set bits k < ``LANES`` to ``target[end]``, ``target[end + 1]``, …; int32.

    Writes up to ``LANES`` entries, of which those beyond the number of set bits are not defined. Needs
    ``HAS_COMPRESS``.
    """

    def generate(context, builder, signature, arguments):
        first_type, _, target_type, _ = signature.args
        first, bits, target, end = arguments
        target = context.make_array(target_type)(context, builder, target).data
        first = splat(builder, context.cast(builder, first, first_type, types.int32), _COMPRESSED)
        for start in range(0, LANES, _COMPRESSED):
            numbers = ir.Constant(first.type, list(range(start, start + _COMPRESSED)))
            end = _compress(builder, builder.add(first, numbers), bits, start, target, end)
        return context.get_dummy_value()

    fits = target == types.Array(types.int32, 1, "C")
    return (types.none(first, types.int64, target, types.intp), generate) if fits else None


def _compress(builder, values, bits, first: int, target, end):
    """Write those of 16 values whose bit, from ``first`` on, is set to ``target[end]`` …; return the new end."""
    vector = values.type
    kind = ir.FunctionType(vector, [vector, vector, ir.VectorType(ir.IntType(1), _COMPRESSED)])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.avx512.mask.compress.v16i32")
    part = builder.trunc(builder.lshr(bits, ir.Constant(bits.type, first)), ir.IntType(_COMPRESSED))
    packed = builder.call(function, [values, ir.Constant(vector, None), builder.bitcast(part, kind.args[2])])
    builder.store(packed, builder.bitcast(cgutils.gep(builder, target, end), vector.as_pointer()), align=4)
    return builder.add(end, builder.zext(builder.ctpop(part), end.type))


columns_above_16 = _columns_above(16)
columns_above_32 = _columns_above(32)


def column_totals(
    context, builder, blocks_type, blocks, which_type, which, coefficients_type, coefficients, lanes: int
):
    """Return ``Σ_j coefficients[j] · blocks[which, j, k]`` for all columns k as one vector."""
    factors = context.make_array(coefficients_type)(context, builder, coefficients)
    size = builder.mul(factors.nitems, ir.Constant(factors.nitems.type, lanes))
    start = builder.mul(context.cast(builder, which, which_type, types.intp), size)
    data = cgutils.gep(builder, context.make_array(blocks_type)(context, builder, blocks).data, start)
    element = context.get_value_type(blocks_type.dtype)
    total = cgutils.alloca_once_value(builder, ir.Constant(ir.VectorType(element, lanes), None))
    with cgutils.for_range(builder, factors.nitems) as loop:
        row = builder.mul(loop.index, ir.Constant(loop.index.type, lanes))
        numbers = load_columns(builder, cgutils.gep(builder, data, row), blocks_type.dtype, lanes)
        factor = splat(builder, builder.load(cgutils.gep(builder, factors.data, loop.index)), lanes)
        product = builder.fmul(factor, numbers, flags=("contract",))
        builder.store(builder.fadd(builder.load(total), product, flags=("contract",)), total)
    return builder.load(total)


def load_columns(builder, pointer, dtype, lanes: int):
    """Load ``lanes`` numbers from ``pointer`` on as one vector."""
    vector = ir.VectorType(pointer.type.pointee, lanes)
    return builder.load(builder.bitcast(pointer, vector.as_pointer()), align=dtype.bitwidth // 8)


def splat(builder, number, lanes: int):
    """Return a vector with ``number`` in every lane."""
    vector = ir.Constant(ir.VectorType(number.type, lanes), ir.Undefined)
    for lane in range(lanes):
        vector = builder.insert_element(vector, number, ir.Constant(ir.IntType(32), lane))
    return vector


def _bits_above(builder, numbers, threshold):
    lanes = numbers.type.count
    above = builder.fcmp_ordered(">", numbers, splat(builder, threshold, lanes))
    return builder.bitcast(above, ir.IntType(lanes))
