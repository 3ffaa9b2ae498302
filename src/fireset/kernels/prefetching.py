"""Prefetching for loops over lists of neurons: the neurons of the next iterations are known before they are needed.

Without it a loop over scattered neurons waits for memory in almost every iteration, because the processor recognizes
regular strides only.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils

from fireset.kernels.masks import intrinsic

AHEAD = 12  # neurons; the memory accesses of so many overlap


def _prefetch(*, end: bool):
    """Create ``prefetch``, or with ``end`` ``prefetch_end``."""

    @intrinsic
    def hint(typing_context, array, index):  # noqa: ARG001 - numba's form of an intrinsic
        if not isinstance(array, types.Array):
            return None

        def generate(context, builder, signature, arguments):
            array_type, index_type = signature.args
            data = context.make_array(array_type)(context, builder, arguments[0])
            stride = cgutils.unpack_tuple(builder, data.strides)[0]
            position = context.cast(builder, arguments[1], index_type, types.intp)
            address = builder.add(builder.ptrtoint(data.data, stride.type), builder.mul(position, stride))
            if end:
                address = builder.add(address, builder.sub(stride, stride.type(1)))
            pointer = builder.inttoptr(address, cgutils.voidptr_t)
            number = ir.IntType(32)
            prefetching = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t] + [number] * 3)
            function = builder.module.declare_intrinsic("llvm.prefetch", (cgutils.voidptr_t,), prefetching)
            builder.call(function, [pointer, number(0), number(3), number(1)])  # for reading, into all caches, data
            return context.get_dummy_value()

        return types.void(array, index), generate

    return hint


# Start to load the first or the last cache line of ``array[index]``: a number, a row or a record. Nothing else happens;
# ``index`` is not checked, because the processor ignores addresses outside the memory of the process.
prefetch = _prefetch(end=False)
prefetch_end = _prefetch(end=True)
