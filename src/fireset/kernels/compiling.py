"""How kernels are compiled: lazily, for the types they meet, cached on disk, without the GIL.

Two kinds. ``strict`` kernels keep the order of operations as written: they decide who fires. ``vector`` kernels let
LLVM regroup sums and use fused multiply-add, which is what lets it use wide registers; NaN and infinity keep their
meaning in both, so that a diverging run is seen and not computed away.
"""

import numba

# False has to be said: a kernel without a word on it inherits the flags of the kernel that first calls it.
strict = numba.njit(cache=True, nogil=True, error_model="numpy", fastmath=False)
vector = numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
