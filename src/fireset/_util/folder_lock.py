"""Lock on a folder, so that only one run uses it at a time."""

import errno
import os
import warnings
import weakref
from pathlib import Path

from fireset._util.errors import InputError

# Errors of systems without locks: some network file systems and containers.
_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}


class FolderLock:
    """A ``flock`` on a file in the folder, which the system releases when the process ends.

    The file is never removed: otherwise a second run could hold a lock on the removed file while a third creates and
    locks a new one. Forked children release the lock, so that it does not outlive the run.

    Parameters
    ----------
    folder : path
        Must exist when ``acquire`` is called.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self._file = folder / "checkpoint.lock"
        self._close: weakref.finalize | None = None  # not None while the lock is held
        self._held_file = (0, 0)  # device and inode, which identify a file under any name

    def acquire(self) -> None:
        """Acquire the lock, if it is not held already; raise an InputError at once if another run holds it."""
        if self._close is not None or os.name != "posix":
            return
        try:
            handle = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise InputError(f"cannot write {self._file}: {error.strerror}") from error
        close = weakref.finalize(self, os.close, handle)
        status = os.fstat(handle)
        file = status.st_dev, status.st_ino
        if not self._locked(handle):
            close()
            here = any(lock._close is not None and lock._held_file == file for lock in list(_HELD))
            raise InputError(
                f"{self._folder} is in use by another run of this process; call finish() of its Trainer, or give "
                "another folder"
                if here
                else f"{self._folder} is in use by another run; wait until that has ended, or give another folder"
            )
        self._close, self._held_file = close, file
        _HELD.add(self)

    def release(self) -> None:
        """Release the lock, if it is held, by closing the file."""
        if self._close is not None:
            self._close()
            self._close = None

    def check_free(self) -> None:
        """Raise an InputError if another run holds the lock; creates no file."""
        if self._file.is_file():
            self.acquire()
            self.release()

    def _locked(self, handle: int) -> bool:
        import fcntl  # not on all systems

        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise InputError(f"cannot lock {self._file}: {error.strerror}") from error
            warnings.warn(f"cannot lock {self._folder} ({error.strerror}); start no other run in it", stacklevel=4)
        return True


_HELD: "weakref.WeakSet[FolderLock]" = weakref.WeakSet()


def _release_in_child() -> None:
    """Close the open files in a forked child, which does not release the locks of the parent."""
    for lock in list(_HELD):
        lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_in_child)
