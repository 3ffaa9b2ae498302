"""Prefetching for loops over lists of neurons: the neurons of the next iterations are known before they are needed.

Without it a loop over scattered neurons waits for memory in almost every iteration, because the processor recognizes
regular strides only.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils

from fireset.kernels.masks import intrinsic

AHEAD = 12  # neurons; the memory accesses of so many overlap


@intrinsic
def prefetch(typing_context, array, index):  # noqa: ARG001 - numba's form of an intrinsic
    """Start to load the cache line of ``array[index]``, for a matrix of the beginning of the row. Changes nothing.

    ``index`` is not checked: an address outside the array is ignored by the processor.
    """
    if not isinstance(array, types.Array):
        return None

    def generate(context, builder, signature, arguments):
        array_type, index_type = signature.args
        data = context.make_array(array_type)(context, builder, arguments[0])
        stride = cgutils.unpack_tuple(builder, data.strides)[0]
        position = context.cast(builder, arguments[1], index_type, types.intp)
        address = builder.add(builder.ptrtoint(data.data, stride.type), builder.mul(position, stride))
        pointer = builder.inttoptr(address, cgutils.voidptr_t)
        number = ir.IntType(32)
        hint = builder.module.declare_intrinsic(
            "llvm.prefetch", (cgutils.voidptr_t,), ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t] + [number] * 3)
        )
        builder.call(hint, [pointer, number(0), number(3), number(1)])  # for reading, keep in all caches, data
        return context.get_dummy_value()

    return types.void(array, index), generate
