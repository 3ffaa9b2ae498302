"""Intrinsics on the 32 points of one leaf of a partition tree, all at once, in vector registers.

Blocks are (leaves, rows, 32), contiguous; a mask is an int64 whose bit k selects column k. Arguments are not checked.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils

from fireset.kernels.masks import column_totals, intrinsic, load_columns, splat

LANES = 32


@intrinsic
def add_excess(typing_context, points, leaf, normal, threshold, mask, factor, totals, row):  # noqa: ARG001
    """Compute ``totals[leaf, row, k] += factor · (⟨normal, points[leaf, :, k]⟩ − threshold)`` over k in ``mask``."""

    def generate(context, builder, signature, arguments):
        kinds = signature.args
        points, leaf, normal, threshold, mask, factor, totals, row = arguments
        products = column_totals(context, builder, kinds[0], points, kinds[1], leaf, kinds[2], normal, LANES)
        excess = builder.fsub(products, splat(builder, threshold, LANES))
        excess = builder.fmul(excess, splat(builder, factor, LANES), flags=("contract",))
        excess = builder.select(_lane_mask(builder, mask), excess, ir.Constant(excess.type, None))
        place = _row_of(context, builder, kinds[6], totals, kinds[1], leaf, kinds[7], row)
        before = load_columns(builder, place, kinds[6].dtype, LANES)
        _store(builder, builder.fadd(before, excess, flags=("contract",)), place, kinds[6].dtype)
        return context.get_dummy_value()

    real = points.dtype
    return types.none(points, leaf, normal, real, types.int64, real, totals, row), generate


@intrinsic
def add_weighted(typing_context, points, leaf, weights, row, mask, factor, sums):  # noqa: ARG001
    """Compute ``sums[j] += factor · Σ_k weights[leaf, row, k] · points[leaf, j, k]`` over k in ``mask``."""

    def generate(context, builder, signature, arguments):
        kinds = signature.args
        points, leaf, weights, row, mask, factor, sums = arguments
        place = _row_of(context, builder, kinds[2], weights, kinds[1], leaf, kinds[3], row)
        share = load_columns(builder, place, kinds[2].dtype, LANES)
        share = builder.select(_lane_mask(builder, mask), share, ir.Constant(share.type, None))
        result = context.make_array(kinds[6])(context, builder, sums)
        with cgutils.for_range(builder, result.nitems) as loop:
            place = _row_of(context, builder, kinds[0], points, kinds[1], leaf, types.intp, loop.index)
            product = builder.fmul(share, load_columns(builder, place, kinds[0].dtype, LANES))
            target = cgutils.gep(builder, result.data, loop.index)
            total = builder.fmul(_sum(builder, product), factor)
            builder.store(builder.fadd(builder.load(target), total), target)
        return context.get_dummy_value()

    return types.none(points, leaf, weights, row, types.int64, points.dtype, sums), generate


def _row_of(context, builder, blocks_type, blocks, block_type, block, row_type, row):
    """Return a pointer to ``blocks[block, row, 0]``."""
    array = context.make_array(blocks_type)(context, builder, blocks)
    rows = cgutils.unpack_tuple(builder, array.shape)[1]
    start = builder.mul(context.cast(builder, block, block_type, types.intp), rows)
    start = builder.add(start, context.cast(builder, row, row_type, types.intp))
    return cgutils.gep(builder, array.data, builder.mul(start, ir.Constant(start.type, LANES)))


def _lane_mask(builder, mask):
    """Return the lowest ``LANES`` bits of an integer as a vector of booleans."""
    return builder.bitcast(builder.trunc(mask, ir.IntType(LANES)), ir.VectorType(ir.IntType(1), LANES))


def _store(builder, numbers, pointer, dtype):
    builder.store(numbers, builder.bitcast(pointer, numbers.type.as_pointer()), align=dtype.bitwidth // 8)


def _sum(builder, numbers):
    """Return the sum of all lanes, in any order."""
    element = numbers.type.element
    suffix = "f32" if isinstance(element, ir.FloatType) else "f64"
    kind = ir.FunctionType(element, [element, numbers.type])
    name = f"llvm.vector.reduce.fadd.v{LANES}{suffix}"
    function = cgutils.get_or_insert_function(builder.module, kind, name)
    return builder.call(function, [ir.Constant(element, 0.0), numbers], fastmath=("reassoc",))
