"""Passes over all pairs of rows and neurons, with pre-activations that stay in registers.

The weights of 64 neurons form a block (d, 64), so that a row times a block is 64 sums in four registers of AVX-512.
They are compared with the threshold, or summed, at once. A matrix product would write them to memory first, which costs
more than the product itself if there are few columns. The order of the sums is that of the columns.
"""

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from fireset.kernels.compiling import vectorized
from fireset.kernels.masks import LANES, intrinsic, load_columns, splat


def column_blocks(W: np.ndarray) -> np.ndarray:
    """Return the weights (m, d) in blocks, (blocks, d, 64). Missing neurons of the last block have weights of 0."""
    count = -(-len(W) // LANES)
    padded = np.zeros((count * LANES, W.shape[1]), W.dtype)
    padded[: len(W)] = W
    return np.ascontiguousarray(padded.reshape(count, LANES, -1).transpose(0, 2, 1))


def _totals(context, builder, signature, arguments):
    """Return ``Σ_j X[row, j] · blocks[which, j, k]`` for the 64 columns k as one vector."""
    blocks_type, which_type, rows_type, row_type = signature.args[:4]
    blocks, which, rows, row = arguments[:4]
    X = context.make_array(rows_type)(context, builder, rows)
    columns = cgutils.unpack_tuple(builder, X.shape)[1]
    start = builder.mul(context.cast(builder, row, row_type, types.intp), columns)
    factors = cgutils.gep(builder, X.data, start)
    start = builder.mul(context.cast(builder, which, which_type, types.intp), columns)
    start = builder.mul(start, ir.Constant(start.type, LANES))
    data = cgutils.gep(builder, context.make_array(blocks_type)(context, builder, blocks).data, start)
    element = context.get_value_type(blocks_type.dtype)
    total = cgutils.alloca_once_value(builder, ir.Constant(ir.VectorType(element, LANES), None))
    with cgutils.for_range(builder, columns) as loop:
        place = builder.mul(loop.index, ir.Constant(loop.index.type, LANES))
        numbers = load_columns(builder, cgutils.gep(builder, data, place), blocks_type.dtype, LANES)
        factor = splat(builder, builder.load(cgutils.gep(builder, factors, loop.index)), LANES)
        product = builder.fmul(factor, numbers, flags=("contract",))
        builder.store(builder.fadd(builder.load(total), product, flags=("contract",)), total)
    return builder.load(total)


def _fits(blocks, X, threshold) -> bool:
    arrays = isinstance(blocks, types.Array) and isinstance(X, types.Array)
    return arrays and (blocks.ndim, X.ndim, blocks.layout, X.layout) == (3, 2, "C", "C") and blocks.dtype == threshold


@intrinsic
def _bits_of_row(typing_context, blocks, which, X, row, threshold):  # noqa: ARG001 - numba's form of an intrinsic
    """Return an int64 whose bit k is set if ``Σ_j X[row, j] · blocks[which, j, k] > threshold``."""
    if not _fits(blocks, X, threshold):
        return None

    def generate(context, builder, signature, arguments):
        totals = _totals(context, builder, signature, arguments)
        above = builder.fcmp_ordered(">", totals, splat(builder, arguments[4], LANES))
        return builder.bitcast(above, ir.IntType(LANES))

    return types.int64(blocks, which, X, row, threshold), generate


@intrinsic
def _output_of_row(typing_context, blocks, which, X, row, threshold, outputs):  # noqa: ARG001
    """Return ``Σ_k outputs[64·which + k] · σ_b(Σ_j X[row, j] · blocks[which, j, k])`` and the number of active k.

    A NaN is kept, so that divergence is detected.
    """
    if not _fits(blocks, X, threshold):
        return None
    result = types.Tuple((blocks.dtype, types.int64))

    def generate(context, builder, signature, arguments):
        totals = _totals(context, builder, signature, arguments)
        excess = builder.fsub(totals, splat(builder, arguments[4], LANES))
        zero = ir.Constant(excess.type, None)
        activations = builder.select(builder.fcmp_ordered("<=", excess, zero), zero, excess)
        start = context.cast(builder, arguments[1], signature.args[1], types.intp)
        start = builder.mul(start, ir.Constant(start.type, LANES))
        data = cgutils.gep(builder, context.make_array(signature.args[5])(context, builder, arguments[5]).data, start)
        products = builder.fmul(activations, load_columns(builder, data, blocks.dtype, LANES))
        element = products.type.element
        suffix = "f32" if isinstance(element, ir.FloatType) else "f64"
        kind = ir.FunctionType(element, [element, products.type])
        name = f"llvm.vector.reduce.fadd.v{LANES}{suffix}"
        add = cgutils.get_or_insert_function(builder.module, kind, name)
        total = builder.call(add, [ir.Constant(element, 0.0), products], fastmath=("reassoc",))
        above = builder.bitcast(builder.fcmp_ordered(">", excess, zero), ir.IntType(LANES))
        return context.make_tuple(builder, signature.return_type, [total, builder.ctpop(above)])

    return result(blocks, which, X, row, threshold, outputs), generate


@vectorized
def pack_active(blocks, X, threshold, bits):
    """Set bit k of word w of ``bits[i]`` if neuron 64·w + k is active for row i of X; bits (n, at least blocks).

    Cost 2·n·m·d operations. With a negative threshold, bits of missing neurons of the last block are set, too.
    """
    for which in range(blocks.shape[0]):
        for i in range(X.shape[0]):
            bits[i, which] = np.uint64(_bits_of_row(blocks, which, X, i, threshold))


@vectorized
def add_outputs(blocks, X, threshold, outputs, totals):
    """Add ``Σ_r outputs[r] σ_b(⟨w_r, x_i⟩)`` to ``totals[i]``, float64, and return the number of active pairs.

    ``outputs`` has an entry for every column of the blocks, 0 for missing neurons, which count as active if the
    threshold is negative. Cost 2·n·m·d operations.
    """
    active = 0
    for which in range(blocks.shape[0]):
        for i in range(X.shape[0]):
            total, count = _output_of_row(blocks, which, X, i, threshold, outputs)
            totals[i] += np.float64(total)
            active += count
    return active
