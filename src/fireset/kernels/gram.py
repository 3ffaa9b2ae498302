"""Products Kᵀ K in float32 with AVX-512, half of them by symmetry.

A panel holds 64 columns of K, row after row. Four columns of a panel times a panel are 4 × 64 sums in 16 registers, to
which each row adds 16 products for 8 loads. OpenBLAS, which takes some processors with AVX-512 for older ones, needs
twice the time there.
"""

from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba import types
from numba.core import cgutils

from fireset.kernels.compiling import vectorized
from fireset.kernels.masks import LANES, intrinsic, load_columns, splat

HAS_WIDE_REGISTERS = bool(get_host_cpu_features().get("avx512f"))
_COLUMNS_AT_ONCE = 4  # divides ``LANES``
_ROWS_AT_ONCE = 128  # of a panel, which stay in the L1 cache


@intrinsic
def _add_products(typing_context, panels, left, right, lo, hi, column, strip):  # noqa: ARG001
    """Add ``Σ_i panels[left, i, column + q] · panels[right, i]`` to 64 entries of ``strip[column + q]`` for each q.

    q < ``_COLUMNS_AT_ONCE``, lo ≤ i < hi, and the entries are those from 64·right on. ``panels`` (panels, n, 64) and
    ``strip`` (64, columns) are contiguous.
    """
    if not (isinstance(panels, types.Array) and isinstance(strip, types.Array) and panels.dtype == strip.dtype):
        return None

    def generate(context, builder, signature, arguments):
        kinds = signature.args
        array = context.make_array(kinds[0])(context, builder, arguments[0])
        sums = context.make_array(kinds[6])(context, builder, arguments[6])
        left, right, lo, hi, column = (
            context.cast(builder, value, kind, types.intp)
            for value, kind in zip(arguments[1:6], kinds[1:6], strict=True)
        )
        rows, width = cgutils.unpack_tuple(builder, array.shape)[1], cgutils.unpack_tuple(builder, sums.shape)[1]
        lanes = ir.Constant(left.type, LANES)
        own = cgutils.gep(builder, array.data, builder.add(builder.mul(builder.mul(left, rows), lanes), column))
        other = cgutils.gep(builder, array.data, builder.mul(builder.mul(right, rows), lanes))
        vector = ir.VectorType(context.get_value_type(kinds[0].dtype), LANES)
        places, totals = [], []
        for q in range(_COLUMNS_AT_ONCE):
            start = builder.mul(builder.add(column, ir.Constant(column.type, q)), width)
            place = cgutils.gep(builder, sums.data, builder.add(start, builder.mul(right, lanes)))
            places.append(builder.bitcast(place, vector.as_pointer()))
            totals.append(cgutils.alloca_once_value(builder, builder.load(places[q], align=4)))
        with cgutils.for_range(builder, builder.sub(hi, lo)) as loop:
            start = builder.mul(builder.add(loop.index, lo), lanes)
            numbers = load_columns(builder, cgutils.gep(builder, other, start), kinds[0].dtype, LANES)
            for q, total in enumerate(totals):
                place = builder.add(start, ir.Constant(start.type, q))
                factor = splat(builder, builder.load(cgutils.gep(builder, own, place)), LANES)
                product = builder.fmul(factor, numbers, flags=("contract",))
                builder.store(builder.fadd(builder.load(total), product, flags=("contract",)), total)
        for place, total in zip(places, totals, strict=True):
            builder.store(builder.load(total), place, align=4)
        return context.get_dummy_value()

    return types.none(panels, left, right, lo, hi, column, strip), generate


@vectorized
def add_gram_strip(panels, left, strip):
    """Add the products of the columns of panel ``left`` with those of the panels up to it to ``strip``.

    ``panels`` is (panels, n, 64), ``strip`` (64, at least 64·(left + 1)). Cost 2·64²·n·(left + 1) operations.
    """
    rows = panels.shape[1]
    for lo in range(0, rows, _ROWS_AT_ONCE):
        hi = min(lo + _ROWS_AT_ONCE, rows)
        for right in range(left + 1):
            for column in range(0, LANES, _COLUMNS_AT_ONCE):
                _add_products(panels, left, right, lo, hi, column, strip)
