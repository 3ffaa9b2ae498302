"""Limits that a control group (a container, a batch job) sets for this process: processors and memory."""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

ROOT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def folders(controller: str) -> Iterator[Path]:
    """Yield the folders of the groups that this process is in, from its own up to the root, of versions 1 and 2.

    Inside a container the path may be that of the host, whose folder is not visible. The visible root is then the group
    of the container.
    """
    for mount, path in _memberships(controller):
        group = PurePosixPath(path.lstrip("/"))
        for part in (group, *group.parents):
            folder = mount / part
            if folder.is_dir():
                yield folder


def processor_limit() -> float:
    """Return the processors that the quota of the group amounts to, such as 0.5; infinite without a quota."""
    least = float("inf")
    for folder in folders("cpu"):
        for quota, period in (_quota_of_version_2(folder), _quota_of_version_1(folder)):
            if quota > 0 and period > 0:
                least = min(least, quota / period)
    return least


def _memberships(controller: str) -> Iterator[tuple[Path, str]]:
    """Yield the folder where a hierarchy is mounted, and the path of this process' group in it."""
    try:
        lines = MEMBERSHIP.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:  # version 2
            yield ROOT, path
            yield ROOT / "unified", path
        elif controller in controllers.split(","):
            yield ROOT / controllers, path
            if controllers != controller:
                yield ROOT / controller, path


def _quota_of_version_2(folder: Path) -> tuple[float, float]:
    """Read ``cpu.max``, such as "50000 100000" or "max 100000"."""
    words = _words(folder / "cpu.max")
    return (words[0], words[1]) if len(words) == 2 else (0.0, 0.0)


def _quota_of_version_1(folder: Path) -> tuple[float, float]:
    quota, period = _words(folder / "cpu.cfs_quota_us"), _words(folder / "cpu.cfs_period_us")
    return (quota[0], period[0]) if quota and period else (0.0, 0.0)


def _words(file: Path) -> list[float]:
    """Read the numbers in a file; return none if there is no such file or no number."""
    try:
        return [float(word) for word in file.read_text(encoding="ascii", errors="replace").split()]
    except (OSError, ValueError):
        return []
