"""Arrays that a kernel allocates, without the functions that numba would compile for ``np.empty`` and ``np.zeros``.

Each of these functions takes a tenth of a second, for every type, in every kernel that is compiled.
"""

from numba import types
from numba.core import cgutils
from numba.core.types.abstract import DTypeSpec
from numba.np.arrayobj import get_itemsize, make_array, populate_array

from fireset.kernels.masks import intrinsic

_ALIGNMENT = 64  # bytes: a cache line


def _allocation(*, zero: bool):
    """Create ``new_array``, or with ``zero`` ``zero_array``."""

    @intrinsic
    def allocate(typing_context, shape, like):  # noqa: ARG001 - numba's form of an intrinsic
        if not isinstance(like, types.Array | DTypeSpec):
            return None
        axes = len(shape) if isinstance(shape, types.BaseTuple) else 1
        result = types.Array(like.dtype, axes, "C")

        def generate(context, builder, signature, arguments):  # noqa: ARG001
            shape = arguments[0]
            lengths = cgutils.unpack_tuple(builder, shape) if axes > 1 else [shape]
            itemsize = context.get_constant(types.intp, get_itemsize(context, result))
            strides = [itemsize]
            for length in reversed(lengths[1:]):
                strides.insert(0, builder.mul(strides[0], length))
            size = builder.mul(strides[0], lengths[0])
            meminfo = context.nrt.meminfo_alloc_aligned(builder, size, _ALIGNMENT)
            data = context.nrt.meminfo_data(builder, meminfo)
            if zero:
                cgutils.memset(builder, data, size, 0)
            array = make_array(result)(context, builder)
            populate_array(
                array,
                data=builder.bitcast(data, context.get_data_type(result.dtype).as_pointer()),
                shape=cgutils.pack_array(builder, lengths),
                strides=cgutils.pack_array(builder, strides),
                itemsize=itemsize,
                meminfo=meminfo,
            )
            return array._getvalue()

        return result(types.UniTuple(types.intp, axes) if axes > 1 else types.intp, like), generate

    return allocate


# An array of this shape, contiguous, with the element type of the array or NumPy type ``like``. The product of the
# lengths is not checked.
new_array = _allocation(zero=False)
zero_array = _allocation(zero=True)
