"""How kernels are compiled: lazily, for the types they meet, cached on disk, without the GIL.

Two kinds. ``strict`` kernels keep the order of operations as written: they decide who fires. ``vectorized`` kernels let
LLVM regroup sums and use fused multiply-add, which is what lets it use wide registers; NaN and infinity keep their
meaning in both, so that a diverging run is seen and not computed away.
"""

import hashlib
import os
from pathlib import Path
from typing import Any

import numba

_OPTIONS = {"cache": True, "nogil": True, "error_model": "numpy"}
_REGROUPED = {"reassoc", "contract", "nsz"}

# False has to be said: a kernel without a word on it inherits the flags of the kernel that first calls it.
strict = numba.njit(**_OPTIONS, fastmath=False)
vectorized = numba.njit(**_OPTIONS, fastmath=_REGROUPED)
# For a part of a kernel that is called for every neuron: the call alone would cost as much as a short list.
inlined = numba.njit(**_OPTIONS, fastmath=_REGROUPED, forceinline=True)
INLINED: Any = {"fastmath": _REGROUPED, "forceinline": True, "error_model": "numpy"}  # the same for ``overload``
strict_inlined = numba.njit(**_OPTIONS, fastmath=False, forceinline=True)


def _discard_stale_code() -> None:
    """Remove compiled code that was made from other sources than these.

    numba looks at the file of a kernel alone: it would keep code that has an older version of another file's function
    in it, and stumble over arrays grouped in a class that has another name now. A mark beside the compiled code says
    which sources it was made from. Where the folder cannot be written, numba keeps its code elsewhere, and as it is.
    """
    folder = Path(__file__).parent
    sources = sorted(folder.glob("*.py"))
    described = [f"{file.name} {file.stat().st_size} {file.stat().st_mtime_ns}" for file in sources]
    mark = hashlib.blake2b("\n".join(described).encode(), digest_size=16).hexdigest()
    cache = folder / "__pycache__"
    marked = cache / "kernels.mark"
    try:
        if marked.exists() and marked.read_text(encoding="ascii") == mark:
            return
        cache.mkdir(exist_ok=True)
        for compiled in (*cache.glob("*.nbi"), *cache.glob("*.nbc")):
            compiled.unlink(missing_ok=True)
        part = marked.with_suffix(f".{os.getpid()}")
        part.write_text(mark, encoding="ascii")
        part.replace(marked)
    except OSError:  # a folder that cannot be written
        return


_discard_stale_code()
