"""Intrinsics on listed rows of a matrix: inner products, weighted sums and rank-one updates in vector registers.

Most of the time of a gradient step is spent here: on inner products of one neuron with its samples, and on weighted
sums of those samples. LLVM compiles plain loops to slower code. It adds up the lanes of each inner product separately,
although those of ``ROWS_AT_ONCE`` inner products can be added up together at the cost of two. It also writes the
weighted sum to memory after every few rows instead of keeping it in registers.

Rows must have the layout of ``fireset._util.aligned.aligned_rows``: whole vectors, each within a cache line. Vectors
that straddle cache lines made passes over short rows a third slower. Arguments are not checked.
"""

from contextlib import contextmanager

import llvmlite.binding
from llvmlite import ir
from numba import types
from numba.core import cgutils

from fireset.kernels.masks import intrinsic, load_columns, splat

_REGISTER_BYTES = 64 if llvmlite.binding.get_host_cpu_features().get("avx512f") else 32
ROWS_AT_ONCE = 4  # inner products; lists are short, and with 8 or 16 more of them would be computed in vain
_CHUNKS = ((4, 2), (2, 4), (1, 4))  # (vectors of the sum in registers, rows that are processed at once)


@intrinsic
def dots(typing_context, rows, ids, start, last, w, threshold, excess, place):  # noqa: ARG001
    """Compute ``excess[place + k] = ⟨w, rows[ids[start + k]]⟩ − threshold`` for k < ``ROWS_AT_ONCE``.

    From k = ``last`` on, all rows are ``ids[start + last]``. ``w`` has the length of a row. Cost O(d).
    """
    lanes = _lanes(rows.dtype)

    def generate(context, builder, signature, arguments):
        rows_type, ids_type, *_, excess_type, _ = signature.args
        rows, ids, start, last, w, threshold, excess, place = arguments
        length, pointers = _pointers(context, builder, rows_type, rows, ids_type, ids, start, last)
        w = context.make_array(signature.args[4])(context, builder, w).data
        zero = ir.Constant(ir.VectorType(context.get_value_type(rows_type.dtype), lanes), None)
        totals = [cgutils.alloca_once_value(builder, zero) for _ in pointers]
        for total in totals:
            builder.store(zero, total)
        with _steps(builder, length, lanes) as j:
            factors = load_columns(builder, cgutils.gep(builder, w, j), rows_type.dtype, lanes)
            for total, pointer in zip(totals, pointers, strict=True):
                numbers = load_columns(builder, cgutils.gep(builder, pointer, j), rows_type.dtype, lanes)
                builder.store(_fused(builder, factors, numbers, builder.load(total)), total)
        sums = _row_sums(builder, [builder.load(total) for total in totals])
        target = cgutils.gep(builder, context.make_array(excess_type)(context, builder, excess).data, place)
        _store(builder, builder.fsub(sums, splat(builder, threshold, ROWS_AT_ONCE)), target, rows_type.dtype)
        return context.get_dummy_value()

    kind = types.none(rows, ids, types.intp, types.intp, w, rows.dtype, excess, types.intp)
    return kind, generate


@intrinsic
def add_rows(typing_context, rows, ids, start, count, factors, first, total):  # noqa: ARG001
    """Compute ``total += Σ_k factors[first + k] · rows[ids[start + k]]`` over k < ``count``. Cost O(count · d)."""
    lanes = _lanes(rows.dtype)

    def generate(context, builder, signature, arguments):
        rows_type, ids_type, _, _, factors_type, _, total_type = signature.args
        rows, ids, start, count, factors, first, total = arguments
        array = context.make_array(rows_type)(context, builder, rows)
        length = cgutils.unpack_tuple(builder, array.shape)[1]
        ids = cgutils.gep(builder, context.make_array(ids_type)(context, builder, ids).data, start)
        factors = cgutils.gep(builder, context.make_array(factors_type)(context, builder, factors).data, first)
        total = context.make_array(total_type)(context, builder, total).data
        done = cgutils.alloca_once_value(builder, ir.Constant(length.type, 0))
        builder.store(ir.Constant(length.type, 0), done)

        def add_chunk(vectors: int, at_once: int) -> None:
            """Compute ``vectors`` vectors of the sum over all rows, from column ``done`` on."""
            column = builder.load(done)
            kind = ir.VectorType(array.data.type.pointee, lanes)
            sums = [
                [cgutils.alloca_once_value(builder, ir.Constant(kind, None)) for _ in range(vectors)]
                for _ in range(at_once)
            ]
            for row_sums in sums:
                for one in row_sums:
                    builder.store(ir.Constant(kind, None), one)

            def add_row(k, row_sums) -> None:
                row = builder.sext(builder.load(cgutils.gep(builder, ids, k)), length.type)
                begin = builder.add(builder.mul(row, length), column)
                factor = splat(builder, builder.load(cgutils.gep(builder, factors, k)), lanes)
                for v, one in enumerate(row_sums):
                    place = builder.add(begin, ir.Constant(length.type, v * lanes))
                    numbers = load_columns(builder, cgutils.gep(builder, array.data, place), rows_type.dtype, lanes)
                    builder.store(_fused(builder, factor, numbers, builder.load(one)), one)

            several = ir.Constant(count.type, at_once)
            whole = builder.sub(count, builder.srem(count, several))
            with _steps(builder, whole, at_once) as k:
                for p in range(at_once):
                    add_row(builder.add(k, ir.Constant(k.type, p)), sums[p])
            with cgutils.for_range_slice(builder, whole, count, ir.Constant(count.type, 1)) as (k, _):
                add_row(k, sums[0])
            for v in range(vectors):
                place = builder.add(column, ir.Constant(length.type, v * lanes))
                target = cgutils.gep(builder, total, place)
                summed = load_columns(builder, target, rows_type.dtype, lanes)
                for row_sums in sums:
                    summed = builder.fadd(summed, builder.load(row_sums[v]))
                _store(builder, summed, target, rows_type.dtype)
            builder.store(builder.add(column, ir.Constant(length.type, vectors * lanes)), done)

        widest, at_once = _CHUNKS[0]
        chunks = builder.sdiv(length, ir.Constant(length.type, widest * lanes))
        with cgutils.for_range(builder, chunks):
            add_chunk(widest, at_once)
        for vectors, at_once in _CHUNKS[1:]:
            left = builder.sub(length, builder.load(done))
            with builder.if_then(builder.icmp_signed(">=", left, ir.Constant(length.type, vectors * lanes))):
                add_chunk(vectors, at_once)
        return context.get_dummy_value()

    return types.none(rows, ids, types.intp, types.intp, factors, types.intp, total), generate


@intrinsic
def add_to_rows(typing_context, rows, ids, start, count, factors, added):  # noqa: ARG001
    """Compute ``rows[ids[start + k]] += factors[k] · added`` for k < ``count``; ``added`` (d,). Cost O(count · d)."""
    lanes = _lanes(rows.dtype)

    def generate(context, builder, signature, arguments):
        rows_type, ids_type, _, _, factors_type, added_type = signature.args
        rows, ids, start, count, factors, added = arguments
        array = context.make_array(rows_type)(context, builder, rows)
        length = cgutils.unpack_tuple(builder, array.shape)[1]
        ids = cgutils.gep(builder, context.make_array(ids_type)(context, builder, ids).data, start)
        factors = context.make_array(factors_type)(context, builder, factors).data
        added = context.make_array(added_type)(context, builder, added).data
        done = cgutils.alloca_once_value(builder, ir.Constant(length.type, 0))
        builder.store(ir.Constant(length.type, 0), done)

        def add_chunk(vectors: int) -> None:
            """Update ``vectors`` vectors of every row from column ``done`` on; ``added`` stays in registers."""
            column = builder.load(done)
            offsets = [builder.add(column, ir.Constant(length.type, v * lanes)) for v in range(vectors)]
            numbers = [load_columns(builder, cgutils.gep(builder, added, j), rows_type.dtype, lanes) for j in offsets]
            with _steps(builder, count, 1) as k:
                row = builder.sext(builder.load(cgutils.gep(builder, ids, k)), length.type)
                begin = builder.mul(row, length)
                factor = splat(builder, builder.load(cgutils.gep(builder, factors, k)), lanes)
                for j, own in zip(offsets, numbers, strict=True):
                    place = cgutils.gep(builder, array.data, builder.add(begin, j))
                    before = load_columns(builder, place, rows_type.dtype, lanes)
                    _store(builder, _fused(builder, factor, own, before), place, rows_type.dtype)
            builder.store(builder.add(column, ir.Constant(length.type, vectors * lanes)), done)

        widest = _CHUNKS[0][0]
        with cgutils.for_range(builder, builder.sdiv(length, ir.Constant(length.type, widest * lanes))):
            add_chunk(widest)
        for vectors, _ in _CHUNKS[1:]:
            left = builder.sub(length, builder.load(done))
            with builder.if_then(builder.icmp_signed(">=", left, ir.Constant(length.type, vectors * lanes))):
                add_chunk(vectors)
        return context.get_dummy_value()

    return types.none(rows, ids, types.intp, types.intp, factors, added), generate


def _lanes(dtype) -> int:
    return 8 * _REGISTER_BYTES // dtype.bitwidth


@contextmanager
def _steps(builder, stop, step: int):
    """Generate a loop over 0, step, 2·step, … < ``stop``."""
    with cgutils.for_range_slice(builder, ir.Constant(stop.type, 0), stop, ir.Constant(stop.type, step)) as (index, _):
        yield index


def _pointers(context, builder, rows_type, rows, ids_type, ids, start, last):
    """Return the length of a row, and pointers to the rows ``ids[start + min(k, last)]`` for k < ``ROWS_AT_ONCE``."""
    array = context.make_array(rows_type)(context, builder, rows)
    length = cgutils.unpack_tuple(builder, array.shape)[1]
    ids = cgutils.gep(builder, context.make_array(ids_type)(context, builder, ids).data, start)
    pointers = []
    for k in range(ROWS_AT_ONCE):
        wanted = ir.Constant(last.type, k)
        position = builder.select(builder.icmp_signed("<", wanted, last), wanted, last) if k else wanted
        row = builder.sext(builder.load(cgutils.gep(builder, ids, position)), length.type)
        pointers.append(cgutils.gep(builder, array.data, builder.mul(row, length)))
    return length, pointers


def _fused(builder, a, b, c):
    """Return a·b + c, fused if the processor supports it."""
    return builder.fadd(builder.fmul(a, b, flags=("contract",)), c, flags=("contract",))


def _row_sums(builder, vectors):
    """Return a vector whose lane k is the sum of all lanes of ``vectors[k]``, of which there is a power of two.

    Two vectors at a time are folded into one with half of the lanes of each, at last the halves of the only one.
    """
    block = vectors[0].type.count
    while block > 1:
        half = block // 2
        pairs = list(zip(vectors[::2], vectors[1::2], strict=True)) if len(vectors) > 1 else [(vectors[0], None)]
        folded = []
        for a, b in pairs:
            width = a.type.count * (1 if b is None else 2)
            firsts = [base + lane for base in range(0, width, block) for lane in range(half)]
            low, high = _indices(firsts), _indices([lane + half for lane in firsts])
            other = a if b is None else b
            folded.append(builder.fadd(builder.shuffle_vector(a, other, low), builder.shuffle_vector(a, other, high)))
        vectors, block = folded, half
    return vectors[0]


def _indices(lanes: list[int]):
    return ir.Constant(ir.VectorType(ir.IntType(32), len(lanes)), lanes)


def _store(builder, numbers, pointer, dtype) -> None:
    builder.store(numbers, builder.bitcast(pointer, numbers.type.as_pointer()), align=dtype.bitwidth // 8)
