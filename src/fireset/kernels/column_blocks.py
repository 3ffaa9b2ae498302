"""Passes over all pairs of rows and neurons, with pre-activations that stay in registers.

The weights of 64 neurons form a block (d, 64), so that a row times a block is 64 sums in four registers of AVX-512.
They are compared with the threshold, or summed, at once. A matrix product would write them to memory first, which costs
more than the product itself if there are few columns. The order of the sums is that of the columns.

With AVX-512 two rows are multiplied at a time: the sums of one row, each of which waits for the last one, leave half of
the multipliers idle. With fewer registers the sums of two rows would not fit.
"""

import numpy as np
from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba import types
from numba.core import cgutils

from fireset.kernels.compiling import vectorized
from fireset.kernels.masks import LANES, intrinsic, load_columns, splat

ROWS_AT_ONCE = 2 if get_host_cpu_features().get("avx512f") else 1


def column_blocks(W: np.ndarray) -> np.ndarray:
    """Return the weights (m, d) in blocks, (blocks, d, 64). Missing neurons of the last block have weights of 0."""
    count = -(-len(W) // LANES)
    padded = np.zeros((count * LANES, W.shape[1]), W.dtype)
    padded[: len(W)] = W
    return np.ascontiguousarray(padded.reshape(count, LANES, -1).transpose(0, 2, 1))


def _totals(context, builder, signature, arguments):
    """Return ``Σ_j X[row + q, j] · blocks[which, j, k]`` for the 64 columns k as a vector for each q < ROWS_AT_ONCE.

    Rows beyond the last are replaced by the last.
    """
    blocks_type, which_type, rows_type, row_type = signature.args[:4]
    blocks, which, rows, row = arguments[:4]
    X = context.make_array(rows_type)(context, builder, rows)
    count, columns = cgutils.unpack_tuple(builder, X.shape)
    row = context.cast(builder, row, row_type, types.intp)
    last = builder.sub(count, ir.Constant(count.type, 1))
    numbers_of_rows = [builder.add(row, ir.Constant(row.type, q)) for q in range(ROWS_AT_ONCE)]
    inside = [builder.icmp_signed("<", number, last) for number in numbers_of_rows]
    starts = [builder.mul(builder.select(*one, last), columns) for one in zip(inside, numbers_of_rows, strict=True)]
    factors = [cgutils.gep(builder, X.data, start) for start in starts]
    start = builder.mul(context.cast(builder, which, which_type, types.intp), columns)
    start = builder.mul(start, ir.Constant(start.type, LANES))
    data = cgutils.gep(builder, context.make_array(blocks_type)(context, builder, blocks).data, start)
    vector = ir.VectorType(context.get_value_type(blocks_type.dtype), LANES)
    totals = [cgutils.alloca_once_value(builder, ir.Constant(vector, None)) for _ in factors]
    with cgutils.for_range(builder, columns) as loop:
        place = builder.mul(loop.index, ir.Constant(loop.index.type, LANES))
        numbers = load_columns(builder, cgutils.gep(builder, data, place), blocks_type.dtype, LANES)
        for own, total in zip(factors, totals, strict=True):
            factor = splat(builder, builder.load(cgutils.gep(builder, own, loop.index)), LANES)
            product = builder.fmul(factor, numbers, flags=("contract",))
            builder.store(builder.fadd(builder.load(total), product, flags=("contract",)), total)
    return [builder.load(total) for total in totals]


def _fits(blocks, X, threshold) -> bool:
    arrays = isinstance(blocks, types.Array) and isinstance(X, types.Array)
    return arrays and (blocks.ndim, X.ndim, blocks.layout, X.layout) == (3, 2, "C", "C") and blocks.dtype == threshold


@intrinsic
def _bits_of_rows(typing_context, blocks, which, X, row, threshold):  # noqa: ARG001 - numba's form of an intrinsic
    """Return int64 whose bit k is set if ``Σ_j X[row + q, j] · blocks[which, j, k] > threshold``, q < ROWS_AT_ONCE."""
    if not _fits(blocks, X, threshold):
        return None

    def generate(context, builder, signature, arguments):
        threshold = splat(builder, arguments[4], LANES)
        bits = [
            builder.bitcast(builder.fcmp_ordered(">", total, threshold), ir.IntType(LANES))
            for total in _totals(context, builder, signature, arguments)
        ]
        return context.make_tuple(builder, signature.return_type, bits)

    return types.UniTuple(types.int64, ROWS_AT_ONCE)(blocks, which, X, row, threshold), generate


@intrinsic
def _outputs_of_rows(typing_context, blocks, which, X, row, threshold, outputs):  # noqa: ARG001
    """Return ``Σ_k outputs[64·which + k] · σ_b(Σ_j X[i, j] · blocks[which, j, k])`` and the number of active k.

    Both are tuples for the rows i = row + q, q < ROWS_AT_ONCE. A NaN is kept, so that divergence is detected.
    """
    if not _fits(blocks, X, threshold):
        return None
    sums, counts = types.UniTuple(blocks.dtype, ROWS_AT_ONCE), types.UniTuple(types.int64, ROWS_AT_ONCE)
    result = types.Tuple((sums, counts))

    def generate(context, builder, signature, arguments):
        threshold = splat(builder, arguments[4], LANES)
        start = context.cast(builder, arguments[1], signature.args[1], types.intp)
        start = builder.mul(start, ir.Constant(start.type, LANES))
        data = cgutils.gep(builder, context.make_array(signature.args[5])(context, builder, arguments[5]).data, start)
        factors = load_columns(builder, data, blocks.dtype, LANES)
        found = [
            _weighted_sum(builder, builder.fsub(total, threshold), factors)
            for total in _totals(context, builder, signature, arguments)
        ]
        parts = [
            context.make_tuple(builder, kind, part)
            for kind, part in zip((sums, counts), zip(*found, strict=True), strict=True)
        ]
        return context.make_tuple(builder, signature.return_type, parts)

    return result(blocks, which, X, row, threshold, outputs), generate


def _weighted_sum(builder, excess, factors):
    """Return ``Σ_k factors[k] max(excess[k], 0)`` and the number of positive entries."""
    zero = ir.Constant(excess.type, None)
    activations = builder.select(builder.fcmp_ordered("<=", excess, zero), zero, excess)
    products = builder.fmul(activations, factors)
    element = products.type.element
    suffix = "f32" if isinstance(element, ir.FloatType) else "f64"
    kind = ir.FunctionType(element, [element, products.type])
    add = cgutils.get_or_insert_function(builder.module, kind, f"llvm.vector.reduce.fadd.v{LANES}{suffix}")
    total = builder.call(add, [ir.Constant(element, 0.0), products], fastmath=("reassoc",))
    above = builder.bitcast(builder.fcmp_ordered(">", excess, zero), ir.IntType(LANES))
    return total, builder.ctpop(above)


@vectorized
def pack_active(blocks, X, threshold, bits):
    """Set bit k of word w of ``bits[i]`` if neuron 64·w + k is active for row i of X; bits (n, at least blocks).

    Cost 2·n·m·d operations. With a negative threshold, bits of missing neurons of the last block are set, too.
    """
    for which in range(blocks.shape[0]):
        for i in range(0, X.shape[0], ROWS_AT_ONCE):
            found = _bits_of_rows(blocks, which, X, i, threshold)
            for q in range(min(ROWS_AT_ONCE, X.shape[0] - i)):
                bits[i + q, which] = np.uint64(found[q])


@vectorized
def add_outputs(blocks, X, threshold, outputs, totals):
    """Add ``Σ_r outputs[r] σ_b(⟨w_r, x_i⟩)`` to ``totals[i]``, float64, and return the number of active pairs.

    ``outputs`` has an entry for every column of the blocks, 0 for missing neurons, which count as active if the
    threshold is negative. Cost 2·n·m·d operations.
    """
    active = 0
    for which in range(blocks.shape[0]):
        for i in range(0, X.shape[0], ROWS_AT_ONCE):
            sums, counts = _outputs_of_rows(blocks, which, X, i, threshold, outputs)
            for q in range(min(ROWS_AT_ONCE, X.shape[0] - i)):
                totals[i + q] += np.float64(sums[q])
                active += counts[q]
    return active
