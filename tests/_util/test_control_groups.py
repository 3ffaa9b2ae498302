"""Limits of control groups: in simulated folders, and in a real group if one can be created."""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from fireset._util import control_groups
from fireset._util.control_groups import processor_limit


@pytest.fixture
def groups(tmp_path, monkeypatch):
    """Create the file system of control groups from a dict of file contents."""

    def make(membership: str, files: dict[str, str]) -> None:
        monkeypatch.setattr(control_groups, "ROOT", tmp_path / "cgroup")
        monkeypatch.setattr(control_groups, "MEMBERSHIP", tmp_path / "membership")
        (tmp_path / "membership").write_text(membership)
        for name, text in files.items():
            file = tmp_path / "cgroup" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)

    return make


@pytest.mark.parametrize(
    ("membership", "files", "limit"),
    [
        ("0::/\n", {"cpu.max": "50000 100000\n"}, 0.5),
        ("0::/\n", {"cpu.max": "max 100000\n"}, float("inf")),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "150000 100000\n"}, 1.5),
        ("0::/a/b\n", {"a/b/cpu.max": "50000 100000\n", "a/cpu.max": "150000 100000\n"}, 0.5),
        ("0::/of/the/host\n", {"cpu.max": "200000 100000\n"}, 2.0),  # a container that does not see its own path
        ("3:cpu,cpuacct:/a\n", {f"cpu,cpuacct/a/cpu.cfs_{name}_us": "100000" for name in ("quota", "period")}, 1.0),
        ("3:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, float("inf")),
        ("3:memory:/\n", {"memory/cpu.max": "1 100000"}, float("inf")),
        ("nonsense", {}, float("inf")),
        ("0::/\n", {"cpu.max": "no numbers"}, float("inf")),
    ],
)
def test_processor_limit(groups, membership, files, limit):
    groups(membership, files)
    assert processor_limit() == limit


def test_no_limit_without_control_groups(tmp_path, monkeypatch):
    monkeypatch.setattr(control_groups, "MEMBERSHIP", tmp_path / "absent")
    assert processor_limit() == float("inf")


def test_half_a_processor_is_one_thread(tmp_path):
    """In a real control group, if this process may create one."""
    group = Path(f"/sys/fs/cgroup/cpu/fireset-test-{os.getpid()}")
    try:
        group.mkdir()
        (group / "cpu.cfs_quota_us").write_text("50000")
    except OSError as error:
        with suppress(OSError):
            group.rmdir()
        pytest.skip(f"no control group can be made here: {error}")
    try:
        code = (
            f"import os; open({str(group / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))\n"
            "from fireset._util.control_groups import processor_limit\n"
            "from fireset._util.parallel import thread_count\n"
            "print(processor_limit(), thread_count())"
        )
        environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
        )
    finally:
        group.rmdir()
    assert done.stdout.split() == ["0.5", "1"]
