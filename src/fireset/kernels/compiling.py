"""How kernels are compiled: ahead of time for the types they meet, cached on disk, without the GIL.

Two kinds. ``strict`` kernels keep the order of operations as written: they decide who fires. ``vectorized`` kernels let
LLVM regroup sums and use fused multiply-add, which is what lets it use wide registers; NaN and infinity keep their
meaning in both, so that a diverging run is seen and not computed away.

Compiled code is cached in the first of these folders that can be written:

1. ``NUMBA_CACHE_DIR``, if it is set;
2. ``__pycache__`` beside the kernels;
3. the cache folder of the user, ``~/.cache/numba``;
4. a folder of the user in the system's folder for temporary files.

Without any of them each process compiles its kernels. Both this and the fourth give a warning, once in a process.
"""

import hashlib
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numba.core.config
from numba.misc.appdirs import AppDirs

_REGROUPED = {"reassoc", "contract", "nsz"}
_FOLDER = Path(__file__).parent
_CONFIG: Any = numba.core.config  # its attributes are made at run time


def _source_digest() -> str:
    """Digest of all kernels' sources.

    numba compares the source of a kernel's own file alone: it would use code that was compiled with an older version of
    another file's function, or of a class that groups arrays.
    """
    total = hashlib.blake2b(digest_size=16)
    for file in sorted(_FOLDER.glob("*.py")):
        total.update(f"{file.name} {file.stat().st_size} ".encode() + file.read_bytes())
    return total.hexdigest()


def _prepare_package_cache(digest: str) -> bool:
    """Remove compiled code of other sources from ``__pycache__``; returns whether the folder can be written."""
    cache = _FOLDER / "__pycache__"
    mark = cache / "kernels.mark"  # the digest of the sources that the compiled code was made from
    try:
        cache.mkdir(exist_ok=True)
        tempfile.TemporaryFile(dir=cache).close()
        if mark.exists() and mark.read_text(encoding="ascii") == digest:
            return True
        for compiled in (*cache.glob("*.nbi"), *cache.glob("*.nbc")):
            compiled.unlink(missing_ok=True)
        part = mark.with_suffix(f".{os.getpid()}")
        part.write_text(digest, encoding="ascii")
        part.replace(mark)
    except OSError:
        return False
    return True


def _is_writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True


def _temporary_folder() -> Path | None:
    """A folder among the temporary files that only this user can write: numba unpickles what it finds in its cache."""
    try:
        if not hasattr(os, "getuid"):  # Windows has a folder for temporary files for each user
            return Path(tempfile.gettempdir(), "fireset-kernels")
        folder = Path(tempfile.gettempdir(), f"fireset-kernels-{os.getuid()}")
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return None
    private = found.st_uid == os.getuid() and not found.st_mode & 0o077 and folder.is_dir() and not folder.is_symlink()
    return folder if private else None


def _choose_cache(digest: str) -> tuple[bool, str]:
    """Whether to cache compiled code, and the folder to do so; "" is numba's choice, beside the kernels."""
    name = f"fireset-{digest}"
    if _CONFIG.CACHE_DIR and _is_writable(given := Path(_CONFIG.CACHE_DIR, name)):
        return True, str(given)
    if _prepare_package_cache(digest):
        return True, ""
    if _is_writable(own := Path(AppDirs("numba", appauthor=False).user_cache_dir, name)):
        return True, str(own)
    temporary = _temporary_folder()
    if temporary is not None and not _is_writable(temporary / name):
        temporary = None
    where = f"are cached in {temporary}" if temporary else "are compiled again by each process"
    warnings.warn(
        f"compiled kernels {where}, because neither {_FOLDER} nor the user's cache folder can be written; set "
        "NUMBA_CACHE_DIR to a folder that can be written and is kept",
        RuntimeWarning,
        stacklevel=2,
    )
    return temporary is not None, str(temporary / name) if temporary else ""


if _CONFIG.DISABLE_JIT:  # kernels contain LLVM code, which Python cannot run
    raise ImportError(
        "NUMBA_DISABLE_JIT must be unset or 0: the kernels of fireset run compiled only", name="fireset.kernels"
    )
_CACHE, _CACHE_FOLDER = _choose_cache(_source_digest())


@contextmanager
def _cache_folder() -> Iterator[None]:
    """Set numba's cache folder while a kernel is declared; functions of other packages keep theirs."""
    before = _CONFIG.CACHE_DIR
    _CONFIG.CACHE_DIR = _CACHE_FOLDER or before
    try:
        yield
    finally:
        _CONFIG.CACHE_DIR = before


def _compiler(**options: Any) -> Any:
    """A decorator for kernels."""
    decorator = numba.njit(cache=_CACHE, nogil=True, error_model="numpy", **options)

    def declare(function: Callable) -> Any:
        with _cache_folder():
            return decorator(function)

    return declare


# False has to be said: a kernel without a word on it inherits the flags of the kernel that first calls it.
strict = _compiler(fastmath=False)
vectorized = _compiler(fastmath=_REGROUPED)
# For a part of a kernel that is called for every neuron: the call alone would cost as much as a short list.
inlined = _compiler(fastmath=_REGROUPED, forceinline=True)
INLINED: Any = {"fastmath": _REGROUPED, "forceinline": True, "error_model": "numpy"}  # the same for ``overload``
strict_inlined = _compiler(fastmath=False, forceinline=True)
