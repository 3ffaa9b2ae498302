"""Log files of unexpected exceptions, for bug reports."""

import datetime
import os
import platform
import shlex
import sys
import tempfile
import traceback
from collections.abc import Iterable
from contextlib import suppress
from importlib import metadata
from pathlib import Path

_LIBRARIES = ("fireset", "numpy", "scipy", "numba", "llvmlite", "scikit-learn", "polars", "safetensors", "typer")


def write_crash_log(error: BaseException, arguments: list[str]) -> Path | None:
    """Write the traceback, the command and all versions to a new file; return None if no folder is writable.

    The folder is the user's log folder (on Linux ``$XDG_STATE_HOME/fireset/log``), or the one for temporary files.
    """
    text = _text(error, arguments)
    for folder in _folders():
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(prefix=_prefix(), suffix=".log", dir=folder)
            with open(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)
            return Path(name)
    return None


def raised_at(error: BaseException) -> str:
    """Return where an exception was raised, as ``file.py:12``."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{os.path.basename(last.filename)}:{last.lineno}"


def _folders() -> Iterable[Path]:
    with suppress(RuntimeError):  # no home folder
        from platformdirs import user_log_path

        yield user_log_path("fireset", appauthor=False)
    with suppress(OSError):  # no usable folder for temporary files
        yield Path(tempfile.gettempdir())


def _prefix() -> str:
    return f"fireset-{datetime.datetime.now():%Y%m%d-%H%M%S}-"


def _text(error: BaseException, arguments: list[str]) -> str:
    versions = []
    for name in _LIBRARIES:
        with suppress(metadata.PackageNotFoundError):
            versions.append(f"{name} {metadata.version(name)}")
    return "\n".join(
        [
            "An unexpected error in fireset. This file names your files and options; check it before you share it.",
            "",
            f"command   fireset {shlex.join(arguments)}",
            f"date      {datetime.datetime.now().astimezone().isoformat(timespec='seconds')}",
            f"platform  {platform.platform()}, Python {sys.version.split()[0]}, {os.cpu_count()} CPUs",
            f"versions  {', '.join(versions)}",
            "",
            *"".join(traceback.format_exception(error)).splitlines(),
            "",
        ]
    )
