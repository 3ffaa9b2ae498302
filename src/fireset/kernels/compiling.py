"""Decorators that compile the kernels with numba: cached on disk, without the GIL.

There are two families. ``strict`` kernels keep the order of floating-point operations as written; they decide which
pairs are active. ``vectorized`` kernels let LLVM reorder sums and use fused multiply-add, which wide registers need.
NaN and infinity keep their meaning in both, so that a diverging run is detected. A kernel gives the same bits in the
process that compiles it and in those that load it (``_KernelLibrary``).

Compiled code is cached in the first of these folders that is writable:

1. ``NUMBA_CACHE_DIR``, if it is set;
2. ``__pycache__`` beside the kernels;
3. the cache folder of the user, ``~/.cache/numba``;
4. a private folder of the user in the folder for temporary files.

Without any of them each process compiles its kernels. This case and the fourth give one warning per process.

The cache is valid while the code of all kernels is unchanged. Comments, docstrings, blank lines and modification times
do not matter (``code_digest``, ``KernelCacheLocator``).
"""

import ast
import hashlib
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numba.core.config
from llvmlite.binding import Linkage
from numba.core.caching import InTreeCacheLocator
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.misc.appdirs import AppDirs

_FASTMATH = {"reassoc", "contract", "nsz"}
_FOLDER = Path(__file__).parent
_PYTHON = f"py{sys.version_info[0]}{sys.version_info[1]}"  # as in numba's file names
_CONFIG: Any = numba.core.config  # its attributes are created at run time


def code_digest(sources: dict[str, bytes]) -> str:
    """Digest of the code of all ``sources`` by file name, without comments, docstrings and line numbers.

    numba compares only the file of the kernel itself. It would use code that was compiled with an older version of a
    function or named tuple from another file.
    """
    total = hashlib.blake2b(digest_size=16)
    for name, source in sorted(sources.items()):
        tree = ast.parse(source)
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
                del node.body[0]
        total.update(f"{name} {ast.dump(tree)}\n".encode())
    return total.hexdigest()


def _kernels_digest() -> str:
    """Return the ``code_digest`` of this package. Sources equal to those of the mark file are not parsed."""
    sources = {file.name: file.read_bytes() for file in sorted(_FOLDER.glob("*.py"))}
    source_digest = hashlib.blake2b(repr(sources).encode(), digest_size=16).hexdigest()
    marked = _read_mark()
    return marked[1] if marked[0] == source_digest else _remember(source_digest, code_digest(sources))


def _read_mark() -> tuple[str, str]:
    """Digests of the sources and of their code for which the cache beside the kernels was made."""
    try:
        source_digest, digest = _mark_file().read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return "", ""
    return source_digest, digest


def _remember(source_digest: str, digest: str) -> str:
    """Write the mark file, and remove code that was compiled from other kernels; returns ``digest``."""
    mark = _mark_file()
    try:
        mark.parent.mkdir(exist_ok=True)
        if _read_mark()[1] != digest:
            for compiled in (*mark.parent.glob(f"*.{_PYTHON}*.nbi"), *mark.parent.glob(f"*.{_PYTHON}*.nbc")):
                compiled.unlink(missing_ok=True)
        part = mark.with_suffix(f".{os.getpid()}")
        part.write_text(f"{source_digest} {digest}", encoding="ascii")
        part.replace(mark)
    except OSError:  # the folder is read-only, and not used as a cache
        pass
    return digest


def _mark_file() -> Path:
    # One for each version of Python: syntax trees, and so digests, differ between versions.
    return _FOLDER / "__pycache__" / f"kernels.{_PYTHON}.mark"


def _is_writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True


def _temporary_folder() -> Path | None:
    """Create a folder for temporary files that only this user can write: numba unpickles the files of its cache."""
    try:
        if not hasattr(os, "getuid"):  # on Windows the folder for temporary files belongs to the user
            return Path(tempfile.gettempdir(), "fireset-kernels")
        folder = Path(tempfile.gettempdir(), f"fireset-kernels-{os.getuid()}")
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError:
        return None
    private = status.st_uid == os.getuid() and not status.st_mode & 0o077
    return folder if private and folder.is_dir() and not folder.is_symlink() else None


def _choose_cache(digest: str) -> tuple[bool, str]:
    """Whether to cache compiled code, and the folder for it; "" stands for ``__pycache__`` beside the kernels."""
    name = f"fireset-{digest}"
    if _CONFIG.CACHE_DIR and _is_writable(given := Path(_CONFIG.CACHE_DIR, name)):
        return True, str(given)
    if _is_writable(_FOLDER / "__pycache__"):
        return True, ""
    if _is_writable(of_user := Path(AppDirs("numba", appauthor=False).user_cache_dir, name)):
        return True, str(of_user)
    temporary = _temporary_folder()
    if temporary is not None and not _is_writable(temporary / name):
        temporary = None
    where = f"are cached in {temporary}" if temporary else "are compiled again by each process"
    warnings.warn(
        f"compiled kernels {where}, because neither {_FOLDER} nor the user's cache folder is writable; set "
        "NUMBA_CACHE_DIR to a writable folder that is kept",
        RuntimeWarning,
        stacklevel=2,
    )
    return temporary is not None, str(temporary / name) if temporary else ""


if _CONFIG.DISABLE_JIT:  # kernels contain LLVM code, which Python cannot run
    raise ImportError(
        "NUMBA_DISABLE_JIT must be unset or 0: the kernels of fireset run compiled only", name="fireset.kernels"
    )
_DIGEST = _kernels_digest()
_CACHE, _CACHE_FOLDER = _choose_cache(_DIGEST)


def cache_is_shared() -> bool:
    """Return whether other processes of this user can read the code that this one compiles."""
    return _CACHE


def is_marked(name: str) -> bool:
    """Return whether ``mark`` was called with this name for the present kernels, in any process."""
    return _CACHE and _named_mark(name).exists()


def mark(name: str) -> None:
    """Record in the cache folder that the kernels that ``name`` stands for are compiled."""
    try:
        _named_mark(name).touch()
    except OSError:  # the folder was removed or is full: kernels are compiled again
        return


def _named_mark(name: str) -> Path:
    folder = Path(_CACHE_FOLDER) if _CACHE_FOLDER else _FOLDER / "__pycache__"
    return folder / f"{name}.{_PYTHON}.{_DIGEST[:16]}.mark"


class KernelCacheLocator(InTreeCacheLocator):
    """Names and stamps the cache files of a kernel.

    numba's own locators put the line of the kernel into the name, and stamp the files with the bytes or the
    modification time of its source file. Here the name of a kernel is unique in its file, and the digest of the code of
    all kernels is the stamp. Versions of numba without ``NUMBA_CACHE_LOCATOR_CLASSES`` ignore this class and use their
    own locators; kernels are then compiled again after every edit.
    """

    def get_cache_path(self) -> str:
        return _CACHE_FOLDER or str(_FOLDER / "__pycache__")

    def get_source_stamp(self) -> Any:
        return _DIGEST

    def get_disambiguator(self) -> str:
        return "kernel"


@contextmanager
def _cache_settings() -> Iterator[None]:
    """Set numba's cache folder and locator while a kernel is declared; functions of other packages keep theirs."""
    names = ("CACHE_DIR", "CACHE_LOCATOR_CLASSES")
    before = {name: getattr(_CONFIG, name, "") for name in names}
    _CONFIG.CACHE_DIR = _CACHE_FOLDER or before["CACHE_DIR"]
    _CONFIG.CACHE_LOCATOR_CLASSES = f"{__name__}.{KernelCacheLocator.__name__}"
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(_CONFIG, name, value)


class _KernelLibrary(JITCodeLibrary):
    """Compiled code of one kernel, with private copies of the functions that it calls.

    numba compiles a copy of each called function together with the kernel, and exports it. Several kernels then define
    the same symbol, and all of them call the definition that was loaded first. The copies were optimized in different
    surroundings, and the sums of ``vectorized`` functions differ between them in the last bits. Without private copies
    results would depend on the kernels that a process ran before, and on whether it compiled or loaded them.
    """

    def _optimize_final_module(self) -> None:
        super()._optimize_final_module()
        for function in self._final_module.functions:
            if function.linkage == Linkage.linkonce_odr:
                function.linkage = Linkage.internal


class _KernelCompiler(Compiler):
    """numba's compiler, with a ``_KernelLibrary`` for the compiled code."""

    def define_pipelines(self) -> list[Any]:
        if self.state.library is None:
            self.state.library = _KernelLibrary(self.state.targetctx.codegen(), self.state.func_id.func_qualname)
            self.state.library.enable_object_caching()  # so that the cache can store it
        return super().define_pipelines()


def _compiler(**options: Any) -> Any:
    """Create a decorator for kernels with these options of ``numba.njit``."""
    decorator = numba.njit(cache=_CACHE, nogil=True, error_model="numpy", pipeline_class=_KernelCompiler, **options)

    def declare(function: Callable) -> Any:
        with _cache_settings():
            return decorator(function)

    return declare


# ``fastmath=False`` must be explicit: without it a kernel inherits the flags of the kernel that calls it first.
strict = _compiler(fastmath=False)
vectorized = _compiler(fastmath=_FASTMATH)
# For a part of a kernel that is called for every neuron: the call alone would cost as much as a short list.
inlined = _compiler(fastmath=_FASTMATH, forceinline=True)
INLINED: Any = {"fastmath": _FASTMATH, "forceinline": True, "error_model": "numpy"}  # ``inlined`` for ``overload``
strict_inlined = _compiler(fastmath=False, forceinline=True)
