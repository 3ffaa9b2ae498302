"""Available memory of the system, and memory of this process."""

import os
from pathlib import Path

import numpy as np
import psutil

from fireset._util import control_groups


def available_bytes() -> float:
    """Return the bytes available without swapping, of the system or of the control group (a container) if less."""
    return min(float(psutil.virtual_memory().available), _control_group_bytes())


def bytes_for_this_process() -> float:
    """Return the available bytes divided by the number of workers that torchrun has started on this machine."""
    workers = os.environ.get("LOCAL_WORLD_SIZE", "")
    return available_bytes() / (max(1, int(workers)) if workers.isdecimal() else 1)


def resident_bytes() -> int:
    """Return the resident memory of this process in bytes."""
    return psutil.Process().memory_info().rss


class PeakMemory:
    """Peak resident memory of this process since ``reset``; on Linux only.

    >>> peak = PeakMemory()
    >>> measured = peak.reset()  # False if the system does not support it
    """

    def reset(self) -> bool:
        """Reset the peak. Returns False if the system does not support it."""
        try:
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        except OSError:
            return False
        return True

    def read(self) -> int | None:
        """Return the peak in bytes, None if the system does not support it."""
        try:
            lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
        except OSError:
            return None
        return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), None)


def _control_group_bytes() -> float:
    """Return the free bytes of the control groups; infinite without a limit. Cached pages of files count as free."""
    names = (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    )
    free = np.inf
    for folder in control_groups.folders("memory"):
        for most, used, cached in names:
            try:
                limit, taken = (float((folder / name).read_text()) for name in (most, used))
                lines = map(str.split, (folder / "memory.stat").read_text().splitlines())
                free = min(free, limit - taken + next(float(number) for name, number in lines if name == cached))
            except (OSError, ValueError, StopIteration):  # no such group, or "max": no limit
                continue
    return free
