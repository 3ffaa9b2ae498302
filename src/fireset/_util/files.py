"""Write files atomically, and read model files, which are untrusted input.

A model file is a safetensors file: plain arrays, no code. Its metadata has a JSON text under the key ``fireset`` with
the version of the format and the description of the model.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fireset._util.errors import InputError

FORMAT_VERSION = 1
_KEY = "fireset"
_TEMPORARY_NAME_BYTES = 100  # allowed by every file system

MODEL = "model", "give a file that fireset train or fireset.save wrote"  # content of a file and remedy, for messages


def check_writable(path: str | os.PathLike) -> None:
    """Raise an InputError if ``path`` cannot be written, before hours of work.

    Creates the temporary file of ``atomic_path``, and the file itself if it does not exist; removes both.
    """
    target = write_target(path)
    try:
        temporary = _create_temporary(target)
        try:
            if not target.exists():
                os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
                target.unlink()
        finally:
            temporary.unlink()
    except OSError as error:
        raise InputError(f"cannot write {path}: {_reason(error)}") from error


@contextmanager
def atomic_path(path: str | os.PathLike) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; rename it to ``path`` if the block succeeds, remove it otherwise."""
    from safetensors import SafetensorError  # raised for a full disk

    target = write_target(path)
    temporary = None
    try:
        temporary = _create_temporary(target)
        yield temporary
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())  # mkstemp creates private files
        os.replace(temporary, target)
        sync_folder(target.parent)
    except (OSError, SafetensorError) as error:
        raise InputError(f"cannot write {path}: {_reason(error)}") from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def _create_temporary(target: Path) -> Path:
    """Create an empty file beside ``target``, named after it; its name is not longer, or at most 100 bytes."""
    name = os.fsencode(target.name)
    room = max(len(name), _TEMPORARY_NAME_BYTES) - len("..12345678.part")
    beginning = name[:room].decode("utf-8", "ignore")  # without half a character
    handle, temporary = tempfile.mkstemp(prefix=f".{beginning}.", suffix=".part", dir=target.parent)
    os.close(handle)
    return Path(temporary)


def sync_folder(folder: Path) -> None:
    """Flush the entries of a folder to disk, so that a renamed file survives a power failure."""
    if os.name != "posix":  # other systems cannot open a folder, and flush when they rename
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def file_name(path: str | os.PathLike) -> str:
    """Return the name of a file as text; bytes that are not UTF-8 become �."""
    return os.fsencode(Path(path).name).decode("utf-8", "replace")


def file_digest(path: str | os.PathLike) -> bytes:
    """Return the BLAKE2b digest of a file, 16 bytes."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).digest()


def write_target(path: str | os.PathLike) -> Path:
    """Resolve ``path``, following links, and check that a file can be written there."""
    try:
        target = Path(path).resolve()
        folder, anything, ordinary = target.is_dir(), target.exists(), target.is_file()
        home = target.parent.is_dir()
    except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle
        raise InputError(f"cannot write {path}: {_reason(error)}") from error
    if target.is_symlink():  # a circle of links, from Python 3.13 on
        raise InputError(f"cannot write {path}: its links lead in a circle; give another place")
    if folder:
        raise InputError(f"cannot write {path}: it is a folder; add the name of a file")
    if anything and not ordinary:  # moving a file over /dev/null would destroy it
        raise InputError(f"cannot write {path}: it is a device or a pipe; give an ordinary file")
    if not home:
        raise InputError(
            f"cannot write {path}: there is no folder {Path(path).parent}; create it or choose another place"
        )
    return target


def write_model(path: str | os.PathLike, arrays: Mapping[str, np.ndarray], description: dict[str, Any]) -> None:
    """Write arrays and a description, which JSON can encode, as one safetensors file, atomically."""
    from safetensors.numpy import save_file

    text = json.dumps({"version": FORMAT_VERSION, **description})
    if (part := _has_lone_surrogate(description)) is not None:
        raise InputError(f"cannot write {path}: {part!r} has half of a surrogate pair, which is not text; rename it")
    with atomic_path(path) as temporary:
        save_file({name: np.ascontiguousarray(a) for name, a in arrays.items()}, temporary, {_KEY: text})


def read_model(
    path: str | os.PathLike, expected: tuple[str, str] = MODEL
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read a file of ``write_model``: (arrays, description). Other, damaged and newer files raise an InputError.

    ``expected`` is (content of the file, remedy) for the message.
    """
    with _opened_model(Path(path), expected) as (file, description):
        return {name: file.get_tensor(name) for name in file.keys()}, description  # noqa: SIM118 - not a dict


def read_description(path: str | os.PathLike) -> dict[str, Any]:
    """Read the description of a model file without its arrays."""
    with _opened_model(Path(path)) as (_, description):
        return description


@contextmanager
def _opened_model(path: Path, expected: tuple[str, str] = MODEL) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Open a safetensors file and yield it with its description; errors in the block become InputErrors."""
    from safetensors import SafetensorError, safe_open

    what, remedy = expected
    try:
        if not path.exists():
            raise InputError(f"no such {what} file: {path}")
        if not path.is_file():  # opening a pipe would wait forever
            raise InputError(f"{path} is not a file; {remedy}")
        with safe_open(path, framework="numpy") as file:
            text = (file.metadata() or {}).get(_KEY)
            if text is None:
                raise InputError(
                    f"{path} is not a fireset {what} (a safetensors file without fireset's header); {remedy}"
                )
            yield file, _description(path, text)
    except InputError:
        raise
    # AttributeError: a dtype that NumPy does not have; ValueError: an impossible shape
    except (SafetensorError, OSError, TypeError, KeyError, AttributeError, ValueError) as error:
        raise InputError(f"{path} is not a fireset {what}, or is damaged ({_reason(error)}); {remedy}") from error


def _description(path: Path, text: str) -> dict[str, Any]:
    try:
        description = json.loads(text, parse_int=_whole_number)
        version = description["version"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise InputError(f"{path} is damaged: its header cannot be read") from error
    if not isinstance(description, dict) or not isinstance(version, int) or version < 1:
        raise InputError(f"{path} is damaged: its header cannot be read")
    if _has_lone_surrogate(description) is not None:
        raise InputError(f"{path} is damaged: its header has half of a surrogate pair, which is not text")
    if version > FORMAT_VERSION:
        raise InputError(
            f"{path} has format version {version}; this fireset reads up to {FORMAT_VERSION}: upgrade fireset"
        )
    return description


def _has_lone_surrogate(part: Any) -> str | None:
    """Return the first string with half of a surrogate pair, which JSON can encode but files and terminals cannot."""
    if isinstance(part, str):
        return part if any("\ud800" <= letter <= "\udfff" for letter in part) else None
    inner = [*part, *part.values()] if isinstance(part, dict) else part if isinstance(part, list | tuple) else ()
    return next((found for each in inner if (found := _has_lone_surrogate(each)) is not None), None)


def _whole_number(digits: str) -> int:
    """Parse an integer of at most 64 bits; ``float`` fails on much larger ones."""
    number = int(digits)
    if abs(number) >= 2**64:
        raise ValueError(f"{len(digits)} digits are too many")
    return number


def _reason(error: Exception) -> str:
    """Return one line: the message of the operating system if there is one."""
    text = getattr(error, "strerror", None) or str(error)
    return text.splitlines()[0] if text else type(error).__name__


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
