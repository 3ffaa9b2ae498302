"""Decorators that compile the kernels with numba: cached on disk, without the GIL.

There are two families. ``strict`` kernels keep the order of floating-point operations as written; they decide which
pairs are active. ``vectorized`` kernels let LLVM reorder sums and use fused multiply-add, which wide registers need.
NaN and infinity keep their meaning in both, so that a diverging run is detected. A kernel gives the same bits in the
process that compiles it and in those that load it (``_KernelLibrary``).

Compiled code is cached in ``NUMBA_CACHE_DIR``, if it is set to a writable folder. Otherwise in two folders:

1. ``__pycache__`` beside the kernels, which all users of this installation read;
2. the cache folder of the user, ``~/.cache/fireset``, which all environments of the user share and which is kept when
   the package is installed again.

Code is loaded from the first folder that has it, and saved in those that are writable. The second is used only if no
other user can write there, because numba unpickles its files. If neither is writable, a private folder in the folder
for temporary files is used, and without that each process compiles its kernels. These cases give one warning per
process.

The cache is valid while the code of all kernels is unchanged. Comments, docstrings, blank lines and modification times
do not matter (``code_digest``, ``KernelCacheLocator``). numba itself compares its version and the processor.
"""

import ast
import ctypes
import gc
import hashlib
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import numba.core.config
from llvmlite.binding import Linkage, get_host_cpu_name
from numba import _dynfunc  # pyright: ignore[reportAttributeAccessIssue] - compiled
from numba.core import ir
from numba.core.caching import FunctionCache, IndexDataCacheFile, InTreeCacheLocator
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.compiler_machinery import register_pass
from numba.core.typed_passes import NativeLowering
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


def _private_folder(folder: Path) -> Path | None:
    """Create a folder that only this user can write: numba unpickles the files of its cache."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.lstat()
    except OSError:
        return None
    if folder.is_symlink() or not folder.is_dir():
        return None
    if hasattr(os, "getuid") and (status.st_uid != os.getuid() or status.st_mode & 0o022):
        return None
    return folder


def _temporary_folder() -> Path | None:
    """Create a private folder in the folder for temporary files."""
    if not hasattr(os, "getuid"):  # on Windows the folder for temporary files belongs to the user
        return Path(tempfile.gettempdir(), "fireset-kernels")
    return _private_folder(Path(tempfile.gettempdir(), f"fireset-kernels-{os.getuid()}"))


_KEPT_FOLDERS = 4  # in the cache folder of a user: versions of the kernels, of numba and of the processor


def _user_folder(digest: str) -> str:
    """Create the folder for these kernels in the cache folder of the user; "" if others can write there.

    Folders that were not used for the longest time are removed.
    """
    place = Path(AppDirs("fireset", appauthor=False).user_cache_dir)
    parent = _private_folder(place) if place.is_absolute() else None  # relative without a home folder
    if parent is None:
        return ""
    folder = parent / f"kernels-{digest[:16]}-numba{numba.__version__}-{get_host_cpu_name()}"
    is_new = not folder.exists()
    if _private_folder(folder) is None or not _is_writable(folder):
        return ""
    try:
        os.utime(folder)
        if is_new:
            for unused in sorted(parent.glob("kernels-*"), key=lambda one: -one.stat().st_mtime)[_KEPT_FOLDERS:]:
                shutil.rmtree(unused, ignore_errors=True)
    except OSError:  # another process removes the same folders
        pass
    return str(folder)


def _choose_cache(digest: str) -> tuple[bool, str, tuple[str, ...]]:
    """Whether to cache compiled code, the folder for it, and further folders to load it from and save it in.

    "" stands for ``__pycache__`` beside the kernels.
    """
    name = f"fireset-{digest}"
    if _CONFIG.CACHE_DIR and _is_writable(given := Path(_CONFIG.CACHE_DIR, name)):
        return True, str(given), ()
    of_package, of_user = _FOLDER / "__pycache__", _user_folder(digest)
    if _is_writable(of_package):
        return True, "", (of_user,) if of_user else ()
    if of_user:
        return True, of_user, (str(of_package),)
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
    return temporary is not None, str(temporary / name) if temporary else "", (str(of_package),)


if _CONFIG.DISABLE_JIT:  # kernels contain LLVM code, which Python cannot run
    raise ImportError(
        "NUMBA_DISABLE_JIT must be unset or 0: the kernels of fireset run compiled only", name="fireset.kernels"
    )
_DIGEST = _kernels_digest()
_CACHE, _CACHE_FOLDER, _FURTHER_FOLDERS = _choose_cache(_DIGEST)


def cache_is_shared() -> bool:
    """Return whether other processes of this user can read the code that this one compiles."""
    return _CACHE


def is_marked(name: str) -> bool:
    """Return whether ``mark`` was called with this name for the present kernels, in any process."""
    return _CACHE and any(os.path.exists(file) for file in _named_marks(name))


def mark(name: str) -> None:
    """Record in the cache folders that the kernels that ``name`` stands for are compiled."""
    for file in _named_marks(name):
        try:
            file.touch()
        except OSError:  # the folder was removed, is full or not writable
            continue


def _named_marks(name: str) -> list[Path]:
    folders = [_CACHE_FOLDER or _FOLDER / "__pycache__", *_FURTHER_FOLDERS]
    version = f"numba{numba.__version__}-{get_host_cpu_name()}"
    return [Path(folder, f"{name}.{_PYTHON}.{_DIGEST[:16]}.{version}.mark") for folder in folders]


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


class _KernelCache(FunctionCache):
    """The cache of one kernel in all folders."""

    def __init__(self, function: Callable) -> None:
        super().__init__(function)
        self._further = [FunctionCache(function) for _ in _FURTHER_FOLDERS]
        for cache, folder in zip(self._further, _FURTHER_FOLDERS, strict=True):
            cache._cache_file = IndexDataCacheFile(folder, self._impl.filename_base, _DIGEST)

    def _load_overload(self, sig: Any, target_context: Any) -> Any:
        loaded = super()._load_overload(sig, target_context)
        for cache in self._further:
            if loaded is None:
                with suppress(OSError):  # the folder belongs to another user, who does not let others read it
                    loaded = cache._load_overload(sig, target_context)
        return loaded

    def _save_overload(self, sig: Any, data: Any) -> None:
        super()._save_overload(sig, data)
        for cache in self._further:
            try:
                cache._save_overload(sig, data)
            except OSError:  # the folder is not writable, is full or was removed: the first one has the code
                continue


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


_WRAPPER = "_ZN7cpython"  # begins the names of functions that Python calls


class _KernelLibrary(JITCodeLibrary):
    """Compiled code of one kernel, with private copies of the functions that it calls.

    numba compiles a copy of each called function together with the kernel, and exports it. Several kernels then define
    the same symbol, and all of them call the definition that was loaded first. The copies were optimized in different
    surroundings, and the sums of ``vectorized`` functions differ between them in the last bits. Without private copies
    results would depend on the kernels that a process ran before, and on whether it compiled or loaded them.
    """

    def _optimize_functions(self, ll_module: Any) -> None:
        """Leave optimization to that of the complete kernel, which does the same after inlining.

        The functions by which Python calls kernels are not optimized at all: that takes longer than to optimize a short
        kernel, and they run in 1 µs.
        """
        ll_module.data_layout = self._codegen._data_layout
        for function in ll_module.functions:
            if function.name.startswith(_WRAPPER) and not function.is_declaration:
                function.add_function_attribute("noinline")
                function.add_function_attribute("optnone")

    def _optimize_final_module(self) -> None:
        """Optimize once. numba inlines in a pass of its own, to remove counting of references that kernels omit."""
        manager, builder = self._codegen._module_pass_manager()
        manager.run(self._final_module, builder)
        for function in self._final_module.functions:
            if function.linkage == Linkage.linkonce_odr:
                function.linkage = Linkage.internal


class _InternalLibrary(_KernelLibrary):
    """LLVM code of a function that is only a part of kernels: each of them optimizes and compiles its own copy."""

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._verify_declare_only_symbols()
        self._finalized = True


# Expressions whose arrays and tuples borrow the references of their operands.
_BORROWING = {"build_tuple", "cast", "exhaust_iter", "getattr", "getitem", "phi", "static_getitem"}


def _makes_references(state: Any) -> bool:
    """Return whether a function makes a reference to an array: returns one, gets one from a call, or copies one.

    Any other function only borrows arrays, which its caller keeps alive, and need not count references. To count those
    of five arguments takes 50 ns, as long as 16 inner products of 64 coordinates.
    """

    def counted(kind: Any) -> bool:
        return state.targetctx.data_model_manager[kind].contains_nrt_meminfo()

    def makes_reference(line: Any) -> bool:
        if isinstance(line, ir.SetItem | ir.StaticSetItem):
            return counted(state.typemap[line.value.name])
        value = line.value if isinstance(line, ir.Assign) else None
        return isinstance(value, ir.Expr) and value.op not in _BORROWING and counted(state.typemap[line.target.name])

    lines = (line for block in state.func_ir.blocks.values() for line in block.body)
    return counted(state.return_type) or any(makes_reference(line) for line in lines)


@register_pass(mutates_CFG=True, analysis_only=False)
class _KernelLowering(NativeLowering):
    """Generate code that counts references only where it makes one."""

    _name = "fireset_kernel_lowering"

    def run_pass(self, state: Any) -> Literal[True]:
        if not _makes_references(state):  # the option ``_nrt`` of numba is read before types are known
            state.targetctx = state.targetctx.subtarget(enable_nrt=False)
        return super().run_pass(state)


class _KernelCompiler(Compiler):
    """numba's compiler with ``_KernelLowering``, and a ``_KernelLibrary`` for the compiled code."""

    library_class: Any = _KernelLibrary
    lowering: Any = _KernelLowering

    def compile_extra(self, func: Any) -> Any:
        """Compile without the collector of reference cycles, which takes an eighth of the time."""
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            return super().compile_extra(func)
        finally:
            if was_enabled:
                gc.enable()

    def define_pipelines(self) -> list[Any]:
        if self.state.library is None:
            self.state.library = self.library_class(self.state.targetctx.codegen(), self.state.func_id.func_qualname)
            self.state.library.enable_object_caching()  # so that the cache can store it
        pipelines = super().define_pipelines()
        for pipeline in pipelines:
            pipeline.passes = [
                (self.lowering if kind is NativeLowering else kind, name) for kind, name in pipeline.passes
            ]
            pipeline.finalize()
        return pipelines


@register_pass(mutates_CFG=True, analysis_only=False)
class _InternalLowering(_KernelLowering):
    """Generate LLVM code without machine code and without functions that can be called from Python or C."""

    _name = "fireset_internal_lowering"

    def run_pass(self, state: Any) -> Literal[True]:
        flags = state.flags = state.flags.copy()
        flags.no_compile = flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
        super().run_pass(state)
        # A key for numba's table of functions. A call from Python raises TypeError.
        refuse = ctypes.cast(ctypes.pythonapi.PyErr_BadArgument, ctypes.c_void_p).value
        key = _dynfunc.make_function(sys.modules[__name__], "internal", "", refuse, _dynfunc.Environment({}), ())
        state.targetctx.insert_user_function(key, state["cr"].fndesc, [state.library])
        state["cr"] = state["cr"]._replace(cfunc=key)
        return True


class _InternalCompiler(_KernelCompiler):
    """numba's compiler with ``_InternalLowering``, which takes half the time."""

    library_class = _InternalLibrary
    lowering = _InternalLowering


def _compiler(**options: Any) -> Any:
    """Create a decorator for kernels with these options of ``numba.njit``."""
    every: dict[str, Any] = {"cache": _CACHE, "nogil": True, "pipeline_class": _KernelCompiler, **_COMMON}
    decorator = numba.njit(**(every | options))

    def declare(function: Callable) -> Any:
        with _cache_settings():
            kernel: Any = decorator(function)
            if options.get("cache", _CACHE):
                kernel._cache = _KernelCache(function)
            return kernel

    return declare


_COMMON: Any = {"error_model": "numpy", "no_cfunc_wrapper": True}
_INTERNAL: Any = {"cache": False, "pipeline_class": _InternalCompiler}
# ``fastmath=False`` must be explicit: without it a kernel inherits the flags of the kernel that calls it first.
strict = _compiler(fastmath=False)
vectorized = _compiler(fastmath=_FASTMATH)
# Functions that only kernels call. They take half the time to compile, and cannot be called from Python.
internal = _compiler(fastmath=_FASTMATH, **_INTERNAL)
strict_internal = _compiler(fastmath=False, **_INTERNAL)
# For those that are called for every neuron: the call alone would cost as much as a short list. Capitals for overloads.
inlined = _compiler(fastmath=_FASTMATH, forceinline=True, **_INTERNAL)
strict_inlined = _compiler(fastmath=False, forceinline=True, **_INTERNAL)
INLINED: Any = {"fastmath": _FASTMATH, "forceinline": True, **_COMMON, "pipeline_class": _InternalCompiler}
STRICT_INTERNAL: Any = {"fastmath": False, **_COMMON, "pipeline_class": _InternalCompiler}
