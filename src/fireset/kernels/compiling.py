"""How kernels are compiled: lazily, for the types they meet, cached on disk, without the GIL.

Two kinds. ``strict`` kernels keep the order of operations as written: they decide who fires. ``vectorized`` kernels let
LLVM regroup sums and use fused multiply-add, which is what lets it use wide registers; NaN and infinity keep their
meaning in both, so that a diverging run is seen and not computed away.
"""

import numba

_OPTIONS = {"cache": True, "nogil": True, "error_model": "numpy"}
_REGROUPED = {"reassoc", "contract", "nsz"}

# False has to be said: a kernel without a word on it inherits the flags of the kernel that first calls it.
strict = numba.njit(**_OPTIONS, fastmath=False)
vectorized = numba.njit(**_OPTIONS, fastmath=_REGROUPED)
# For a part of a kernel that is called for every neuron: the call alone would cost as much as a short list.
inlined = numba.njit(**_OPTIONS, fastmath=_REGROUPED, forceinline=True)
