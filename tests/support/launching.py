"""Starting workers on this machine, and finding them."""

import os
import subprocess
import sys
import time
from pathlib import Path

_PATH = os.pathsep.join(filter(None, (str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH"))))
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": _PATH}


def torchrun(*arguments, processes: int) -> list[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    return [*launcher, *map(str, arguments)]


def wait_for_checkpoint(process: subprocess.Popen, folder: Path) -> None:
    """Until the run has written one; it must not have ended before."""
    until = time.monotonic() + 100
    while not list(folder.glob("checkpoint-????????.safetensors")):
        assert time.monotonic() < until
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


def worker_of(launcher: int, rank: int) -> int:
    """The process that torchrun gave this rank."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
                environment = (entry / "environ").read_bytes().split(b"\0")
            except (OSError, IndexError):
                continue  # it has gone
            if parent == launcher and f"RANK={rank}".encode() in environment:
                return int(entry.name)
    raise AssertionError(f"no worker of rank {rank}")
