"""How much memory there is, and how much this process has: the one place that asks the system."""

import os
from pathlib import Path

import numpy as np
import psutil

from fireset._util import control_groups


def available_bytes() -> float:
    """Bytes that can be had without swapping: of the system, or of the control group (a container, say) if less."""
    return min(float(psutil.virtual_memory().available), _control_group_bytes())


def bytes_for_this_process() -> float:
    """Its part of what is available, where torchrun has started several workers on this machine."""
    workers = os.environ.get("LOCAL_WORLD_SIZE", "")
    return available_bytes() / (max(1, int(workers)) if workers.isdecimal() else 1)


def resident_bytes() -> int:
    """Bytes of memory that this process has."""
    return psutil.Process().memory_info().rss


class PeakMemory:
    """The most memory that this process has had since ``reset``; only Linux says so.

    >>> peak = PeakMemory()
    >>> measured = peak.reset()  # False where the system does not tell
    """

    def reset(self) -> bool:
        """Forget the peak so far. Returns False where the system keeps none that can be forgotten."""
        try:
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        except OSError:
            return False
        return True

    def read(self) -> int | None:
        try:
            lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
        except OSError:
            return None
        return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), None)


def _control_group_bytes() -> float:
    """Return what the control groups have left; infinite without a limit. Cached pages of files count as free."""
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
