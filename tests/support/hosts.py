"""Several hosts on one machine: network namespaces, each with an address, joined by a bridge; and torchrun over them.

They share the disk, as machines share a folder. Needs root, and ``ip`` (iproute2).
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

PORT = 29400
CABLE = str(Path(__file__).with_name("lossy_cable.py"))


def why_not() -> str:
    """What it takes that is not here, or nothing."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if not shutil.which("ip"):
        return "network namespaces need ip (apt-get install iproute2)"
    name = f"fireset-try-{os.getpid()}"
    if _run("ip", "netns", "add", name, check=False).returncode:
        return "this system does not let root make network namespaces"
    bridge = _run("ip", "-n", name, "link", "add", "br0", "type", "bridge", check=False)
    _run("ip", "netns", "del", name)
    return "this kernel has no bridges" if bridge.returncode else ""


class Hosts:
    """Hosts 1 … n with the addresses 10.77.0.k, each on a port of a switch; gone at the end of the block."""

    def __init__(self, count: int, folder: Path):
        self.folder, self._count = folder, count
        self._name = f"fireset-{os.getpid()}"
        self._switch = f"{self._name}-switch"
        self.launchers: dict[int, subprocess.Popen] = {}
        self._cables: dict[int, subprocess.Popen] = {}  # those that lose something

    def __enter__(self) -> "Hosts":
        _run("ip", "netns", "add", self._switch)
        _run("ip", "-n", self._switch, "link", "add", "br0", "type", "bridge")
        _run("ip", "-n", self._switch, "link", "set", "br0", "up")
        for k in range(1, self._count + 1):
            host = self._host(k)
            _run("ip", "netns", "add", host)
            _run("ip", "-n", host, "link", "set", "lo", "up")
            self._lay_cable(k)
        return self

    def _lay_cable(self, k: int) -> None:
        ends = ["netns", self._host(k), "type", "veth", "peer", "name", f"port{k}", "netns", self._switch]
        _run("ip", "link", "add", "eth0", *ends)
        self._plug_in(k)

    def _plug_in(self, k: int) -> None:
        """The cable of a host has two ends: give one an address, and the other to the switch."""
        _run("ip", "-n", self._switch, "link", "set", f"port{k}", "master", "br0", "up")
        _run("ip", "-n", self._host(k), "addr", "add", f"10.77.0.{k}/24", "dev", "eth0")
        _run("ip", "-n", self._host(k), "link", "set", "eth0", "up")

    def __exit__(self, *_) -> None:
        for k in range(1, self._count + 1):
            self.signal(k, signal.SIGKILL)
        for launcher in self.launchers.values():
            launcher.wait(60)
        for k in list(self._cables):
            self._cut(k)
        for name in [self._switch, *(self._host(k) for k in range(1, self._count + 1))]:
            _run("ip", "netns", "del", name, check=False)

    def _host(self, k: int) -> str:
        return f"{self._name}-{k}"

    def launch(self, k: int, *words, restarts: int = 0, join_timeout: int = 120) -> None:
        """Torchrun on host k, with one worker; the first host keeps the rendezvous."""
        command = ["ip", "netns", "exec", self._host(k), sys.executable, "-m", "torch.distributed.run"]
        command += [f"--nnodes={self._count}", "--nproc-per-node=1", f"--max-restarts={restarts}"]
        command += ["--rdzv-backend=c10d", f"--rdzv-endpoint=10.77.0.1:{PORT}", "--rdzv-id=fireset"]
        command += [f"--local-addr=10.77.0.{k}", f"--rdzv-conf=join_timeout={join_timeout},is_host={int(k == 1)}"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0"}
        environment |= {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        with self.log(k).open("a") as log:
            self.launchers[k] = subprocess.Popen(
                [*command, "-m", "fireset", *map(str, words)],
                env=environment,
                cwd=self.folder,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def log(self, k: int) -> Path:
        return self.folder / f"host{k}.log"

    def processes(self, k: int) -> list[int]:
        """Of a host, torchrun first."""
        return sorted(map(int, _run("ip", "netns", "pids", self._host(k)).stdout.split()))

    def worker(self, k: int) -> int:
        """The process that torchrun has started on a host."""
        for process in self.processes(k):
            try:
                if b"RANK=" in Path(f"/proc/{process}/environ").read_bytes().replace(b"\0", b"\n"):
                    return process
            except OSError:
                continue  # it has gone
        raise AssertionError(f"no worker on host {k}")

    def signal(self, k: int, number: int) -> None:
        """To all processes of a host, until none has come meanwhile."""
        for process in self.processes(k):
            try:
                os.kill(process, number)
            except ProcessLookupError:
                continue

    def link(self, k: int, state: str) -> None:
        """Pull the cable of a host ("down"), or plug it in again ("up"); the host itself does not see it."""
        _run("ip", "-n", self._switch, "link", "set", f"port{k}", state)

    def impair(self, k: int, *, loss: float, delay: float) -> bool:
        """Another cable for a host, which loses this share of all packets and delays the others by so many seconds.

        In both directions. False where there are no TAP devices to make it of.
        """
        if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
            return False
        host = self._host(k)
        _run("ip", "-n", host, "link", "del", "eth0")
        command = [sys.executable, CABLE, host, "eth0", self._switch, f"port{k}", str(loss), str(delay)]
        cable = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._cables[k] = cable
        assert cable.stdout is not None
        assert cable.stdout.readline() == "ready\n"
        self._plug_in(k)
        return True

    def repair(self, k: int) -> None:
        """A good cable again."""
        self._cut(k)
        self._lay_cable(k)

    def _cut(self, k: int) -> None:
        cable = self._cables.pop(k)
        cable.kill()
        cable.communicate()

    def ends(self, k: int, within: float) -> int:
        """The exit code of a host's torchrun."""
        return self.launchers[k].wait(within)

    def logs(self) -> str:
        parts = (self.log(k) for k in range(1, self._count + 1))
        return "\n".join(f"{part.name}:\n{part.read_text()[-3000:]}" for part in parts if part.exists())


def wait_until(true: Callable[[], object], within: float, what: str) -> None:
    until = time.monotonic() + within
    while not true():
        assert time.monotonic() < until, f"{what} did not happen within {within} s"
        time.sleep(0.01)


def _run(*command: str, check: bool = True) -> subprocess.CompletedProcess:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 or not check, f"{' '.join(command)}: {done.stderr}"
    return done
