"""One run at a time in a folder."""

import errno
import os
import warnings
import weakref
from pathlib import Path

from fireset._util.errors import InputError

# What systems answer that have no locks: some network file systems, some containers.
_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}


class FolderLock:
    """A lock on a file in the folder, ``flock``, which the system drops with the process, however that ends.

    The file stays: were it removed, a second run could hold the removed one while a third makes and locks another.
    Forked children do not hold the lock, so that it does not outlive the run that took it.

    Parameters
    ----------
    folder : path
        Which must be there by the time of ``acquire``.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self._file = folder / "checkpoint.lock"
        self._close: weakref.finalize | None = None  # while it is held
        self._held_file = (0, 0)  # device and inode, which tell files apart by whatever name

    def acquire(self) -> None:
        """Take it, or keep it; refused at once where another run has it."""
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
        """Let others in, if it is held; closing the file does it."""
        if self._close is not None:
            self._close()
            self._close = None

    def check_free(self) -> None:
        """Refuse a folder that another run has, without leaving a trace where there is none."""
        if self._file.is_file():
            self.acquire()
            self.release()

    def _locked(self, handle: int) -> bool:
        import fcntl  # not everywhere

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


def _leave_to_parent() -> None:
    """In a forked child: its copies of the open files are closed, which does not touch the parent's locks."""
    for lock in list(_HELD):
        lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)
