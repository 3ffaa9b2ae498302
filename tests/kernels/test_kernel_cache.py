"""Where compiled kernels are cached: an installation that cannot be written, no home folder, and old code."""

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import fireset
from fireset.kernels import compiling

SOURCE = Path(fireset.__file__).parent
NOBODY = 65534
# Root writes wherever it likes. As nobody it may only read what it likes, such as an interpreter in its home folder.
AS_NOBODY = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
AS_NOBODY += ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
DECLARE_KERNELS = """
from fireset.kernels import compiling, transposing
print(compiling._CACHE, compiling._CACHE_FOLDER)
print(compiling.numba.core.config.CACHE_DIR)
"""


@pytest.fixture
def installation(tmp_path):
    """The package where it cannot be written, and a folder for temporary files that can."""
    tmp_path.chmod(0o755)
    package = tmp_path / "site" / "fireset"
    shutil.copytree(SOURCE, package, ignore=shutil.ignore_patterns("__pycache__"))
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    temporary.chmod(0o1777)
    folders = [entry for entry in (tmp_path / "site").rglob("*") if entry.is_dir()]
    for folder in [tmp_path / "site", *folders]:
        folder.chmod(0o555)
    for parent in tmp_path.parents:
        if os.geteuid() == 0 and parent.name.startswith("pytest-"):
            parent.chmod(0o755)
    yield tmp_path
    for folder in [tmp_path / "site", *folders]:
        folder.chmod(0o755)


def run(installation: Path, code: str, **environment: str) -> subprocess.CompletedProcess:
    if os.geteuid() == 0 and shutil.which("setpriv") is None:
        pytest.skip("root can write everywhere, and there is no setpriv to become another user")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NUMBA_", "XDG_"))}
    kept |= {"PYTHONPATH": str(installation / "site"), "HOME": "/nonexistent", "TMPDIR": str(installation / "tmp")}
    command = [*(AS_NOBODY if os.geteuid() == 0 else []), sys.executable, "-c", code]
    return subprocess.run(
        command, env=kept | environment, cwd="/", capture_output=True, text=True, timeout=120, check=False
    )


class TestReadOnlyInstallation:
    def test_a_private_folder_among_the_temporary_files(self, installation):
        done = run(installation, DECLARE_KERNELS)
        assert done.returncode == 0, done.stderr
        cached, folder = done.stdout.splitlines()[0].split()
        assert (cached, Path(folder).parents[1]) == ("True", installation / "tmp")
        assert stat.S_IMODE(Path(folder).parent.stat().st_mode) == 0o700
        assert done.stdout.splitlines()[1] == ""  # other packages' functions are cached where they were
        assert done.stderr.count("NUMBA_CACHE_DIR") == 1

    def test_another_users_folder_is_not_used(self, installation):
        """numba unpickles its cache: what somebody else put there would be run."""
        user = NOBODY if os.geteuid() == 0 else os.geteuid()
        trap = installation / "tmp" / f"fireset-kernels-{user}"
        trap.mkdir()
        trap.chmod(0o777)
        done = run(installation, DECLARE_KERNELS)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[0].split() == ["False"]
        assert done.stderr.count("NUMBA_CACHE_DIR") == 1
        assert not list(trap.iterdir())

    def test_the_users_cache_folder_needs_no_hint(self, installation):
        home = installation / "home"
        home.mkdir()
        home.chmod(0o777)
        done = run(installation, DECLARE_KERNELS, HOME=str(home))
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[0].startswith(f"True {home}")
        assert "NUMBA_CACHE_DIR" not in done.stderr

    def test_the_given_folder_comes_first(self, installation):
        given = installation / "given"
        given.mkdir()
        given.chmod(0o777)
        done = run(installation, DECLARE_KERNELS, NUMBA_CACHE_DIR=str(given))
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[0].startswith(f"True {given}")
        assert done.stdout.splitlines()[1] == str(given)
        assert not done.stderr

    @pytest.mark.slow
    def test_training(self, installation):
        """A whole fit, and the next process finds the compiled code."""
        code = (
            "import numpy as np, fireset\n"
            "from fireset.kernels.firing import activate\n"
            "X = np.eye(4, dtype=np.float32)\n"
            "network = fireset.ShiftedReLUNetwork.initialize(60, 4, threshold=0.5)\n"
            "fireset.train(network, X, X[:, 0], max_iter=3, engine='dense')\n"
            "print(sum(activate.stats.cache_hits.values()), sum(activate.stats.cache_misses.values()))\n"
        )
        first, second = (run(installation, code) for _ in range(2))
        assert first.returncode == second.returncode == 0, first.stderr + second.stderr
        (hits, misses), (later_hits, later_misses) = (map(int, done.stdout.split()) for done in (first, second))
        assert (hits, later_misses) == (0, 0)
        assert misses
        assert later_hits


@pytest.mark.slow
def test_without_compiling_nothing_runs(tmp_path):
    """One line and exit code 2, not a traceback out of numba."""
    command = [sys.executable, "-m", "fireset", "demo", "--out", str(tmp_path / "model.safetensors")]
    done = subprocess.run(
        command, env={**os.environ, "NUMBA_DISABLE_JIT": "1"}, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "NUMBA_DISABLE_JIT" in done.stderr


def test_code_of_other_sources_is_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(compiling, "_FOLDER", tmp_path)
    (tmp_path / "kernel.py").write_text("one = 1\n")
    assert compiling._prepare_package_cache(compiling._source_digest())
    compiled = tmp_path / "__pycache__" / "kernel.one-1.py311.nbi"
    compiled.touch()
    assert compiling._prepare_package_cache(compiling._source_digest())
    assert compiled.exists()
    (tmp_path / "kernel.py").write_text("one = 2\n")
    assert compiling._prepare_package_cache(compiling._source_digest())
    assert not compiled.exists()
