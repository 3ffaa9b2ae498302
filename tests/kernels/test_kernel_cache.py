"""Folders for compiled kernels, and which edits of the sources make them invalid."""

import gc
import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from llvmlite.binding import Linkage

import fireset
from fireset.kernels import compiling

SOURCE = Path(fireset.__file__).parent
NOBODY = 65534
# Root can write everywhere. The user nobody may read everything, such as an interpreter in the home folder of root.
AS_NOBODY = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
AS_NOBODY += ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
DECLARE_KERNELS = """
from fireset.kernels import compiling, fire_sets
print(compiling._CACHE, compiling._CACHE_FOLDER)
print(compiling.numba.core.config.CACHE_DIR)
"""


@pytest.fixture
def installation(tmp_path):
    """Copy the package to a read-only folder, and create a writable folder for temporary files."""
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
    def test_temporary_folder_is_private(self, installation):
        done = run(installation, DECLARE_KERNELS)
        assert done.returncode == 0, done.stderr
        cached, folder = done.stdout.splitlines()[0].split()
        assert (cached, Path(folder).parents[1]) == ("True", installation / "tmp")
        assert stat.S_IMODE(Path(folder).parent.stat().st_mode) == 0o700
        assert done.stdout.splitlines()[1] == ""  # the setting of other packages is unchanged
        assert done.stderr.count("NUMBA_CACHE_DIR") == 1

    def test_folder_of_another_user_is_not_used(self, installation):
        """numba unpickles its cache, so files of another user would be executed."""
        user = NOBODY if os.geteuid() == 0 else os.geteuid()
        trap = installation / "tmp" / f"fireset-kernels-{user}"
        trap.mkdir()
        trap.chmod(0o777)
        done = run(installation, DECLARE_KERNELS)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[0].split() == ["False"]
        assert done.stderr.count("NUMBA_CACHE_DIR") == 1
        assert not list(trap.iterdir())

    def test_user_cache_folder_gives_no_warning(self, installation):
        home = installation / "home"
        home.mkdir()
        home.chmod(0o777)
        done = run(installation, DECLARE_KERNELS, HOME=str(home))
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[0].startswith(f"True {home}")
        assert "NUMBA_CACHE_DIR" not in done.stderr

    def test_numba_cache_dir_comes_first(self, installation):
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
        """Train a network; the next process loads the compiled code."""
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
def test_disabled_jit_is_refused(tmp_path):
    """One line and exit code 2, not a traceback of numba."""
    command = [sys.executable, "-m", "fireset", "demo", "--out", str(tmp_path / "model.safetensors")]
    done = subprocess.run(
        command, env={**os.environ, "NUMBA_DISABLE_JIT": "1"}, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "NUMBA_DISABLE_JIT" in done.stderr


KERNEL = """'''A module.'''

from fireset.kernels.compiling import vectorized


@vectorized
def double(x):
    '''Return 2x.'''
    return 2 * x  # exactly
"""


class TestCodeDigest:
    """The cache stays valid while the code of the kernels is unchanged."""

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            ("# exactly", "# a longer comment"),
            ("Return 2x.", "Return x + x."),
            ("A module.", "Another module."),
            ("\n\n\n@vectorized", "\n\n\n\n\n@vectorized"),
        ],
    )
    def test_comments_docstrings_and_lines_do_not_matter(self, old, new):
        assert old in KERNEL
        changed = KERNEL.replace(old, new)
        assert compiling.code_digest({"a.py": changed.encode()}) == compiling.code_digest({"a.py": KERNEL.encode()})

    @pytest.mark.parametrize(("old", "new"), [("2 * x", "3 * x"), ("@vectorized", "@strict"), ("double", "triple")])
    def test_code_matters(self, old, new):
        changed = KERNEL.replace(old, new)
        assert compiling.code_digest({"a.py": changed.encode()}) != compiling.code_digest({"a.py": KERNEL.encode()})

    def test_names_of_files_matter(self):
        assert compiling.code_digest({"a.py": b""}) != compiling.code_digest({"b.py": b""})

    def test_compiled_code_of_other_kernels_is_removed(self, tmp_path, monkeypatch):
        monkeypatch.setattr(compiling, "_FOLDER", tmp_path)
        source = tmp_path / "kernel.py"
        source.write_text("one = 1\n")
        digest = compiling._kernels_digest()
        compiled = tmp_path / "__pycache__" / f"kernel.one-kernel.{compiling._PYTHON}.nbi"
        compiled.touch()
        source.write_text("one = 1  # a comment\n")
        assert compiling._kernels_digest() == compiling._kernels_digest() == digest
        assert compiled.exists()
        source.write_text("one = 2\n")
        assert compiling._kernels_digest() != digest
        assert not compiled.exists()


@pytest.mark.slow
def test_editing_a_comment_compiles_nothing(tmp_path):
    """A second process loads all kernels from the cache, although lines and modification times have changed."""
    package = tmp_path / "fireset"
    shutil.copytree(SOURCE, package, ignore=shutil.ignore_patterns("__pycache__"))
    code = (
        "import numpy as np\n"
        "from fireset.kernels.firing import deciding_dot as dot\n"
        "dot(np.ones(3), np.ones(3))\n"
        "print(sum(dot.stats.cache_hits.values()), sum(dot.stats.cache_misses.values()))\n"
    )
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    environment = kept | {"PYTHONPATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    counts = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, cwd="/", capture_output=True, text=True, check=True
        )
        counts.append(done.stdout.split())
        firing = package / "kernels" / "firing.py"
        firing.write_text("# A new first line.\n" + firing.read_text(encoding="utf-8"), encoding="utf-8")
    assert counts == [["0", "1"], ["1", "0"]]


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="XDG_CACHE_HOME is not used")
def test_a_new_installation_finds_the_kernels_of_a_former_one(tmp_path):
    """Both are in the folder of the user, so that the second process compiles nothing; with other code it does."""
    code = (
        "import numpy as np\n"
        "from fireset.kernels import compiling\n"
        "from fireset.kernels.firing import deciding_dot as dot\n"
        "before = compiling.is_marked('dots')\n"
        "compiling.mark('dots')\n"
        "print(before, dot(np.ones(3), np.ones(3)), sum(dot.stats.cache_misses.values()))\n"
    )
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    found = []
    for name in ("first", "second", "other"):
        package = tmp_path / name / "fireset"
        shutil.copytree(SOURCE, package, ignore=shutil.ignore_patterns("__pycache__"))
        if name == "other":
            with (package / "kernels" / "firing.py").open("a") as firing:
                firing.write("one = 1\n")
        environment = kept | {"PYTHONPATH": str(tmp_path / name), "XDG_CACHE_HOME": str(tmp_path / "cache")}
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, cwd="/", capture_output=True, text=True, check=True
        )
        found.append(done.stdout.split())
    assert found == [["False", "3.0", "1"], ["True", "3.0", "0"], ["False", "3.0", "1"]]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="XDG_CACHE_HOME is not used")
class TestUserFolder:
    @pytest.fixture(autouse=True)
    def cache(self, tmp_path, monkeypatch) -> Path:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        return tmp_path / "fireset"

    def test_is_private(self, cache):
        folder = Path(compiling._user_folder("0123456789abcdef"))
        assert folder.parent == cache
        assert {stat.S_IMODE(one.stat().st_mode) for one in (folder, cache)} == {0o700}
        assert Path(compiling._user_folder("0123456789abcdef")) == folder
        assert Path(compiling._user_folder("fedcba9876543210")) != folder

    @pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
    @pytest.mark.parametrize("inner", [False, True])
    def test_that_others_can_write_is_not_used(self, cache, mode, inner):
        folder = Path(compiling._user_folder("0123456789abcdef"))
        (folder if inner else cache).chmod(mode)
        assert compiling._user_folder("0123456789abcdef") == ""

    def test_of_another_user_is_not_used(self, cache, monkeypatch):
        folder = compiling._user_folder("0123456789abcdef")
        assert folder
        monkeypatch.setattr(os, "getuid", lambda: cache.stat().st_uid + 1)
        assert compiling._user_folder("0123456789abcdef") == ""

    def test_relative_is_not_used(self, tmp_path, monkeypatch):
        """Without a home folder, too."""
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("XDG_CACHE_HOME", "")
        assert compiling._user_folder("0123456789abcdef") == ""
        assert not any(tmp_path.iterdir())

    def test_link_is_not_used(self, cache, tmp_path):
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        cache.symlink_to(tmp_path / "elsewhere")
        assert compiling._user_folder("0123456789abcdef") == ""

    def test_least_recently_used_are_removed(self, cache):
        digests = [f"{k:016x}" for k in range(compiling._KEPT_FOLDERS + 2)]
        folders = []
        for k, digest in enumerate(digests):
            folders.append(Path(compiling._user_folder(digest)))
            (folders[-1] / "kernel.nbc").touch()
            os.utime(folders[-1], (k, k))
            compiling._user_folder(digests[0])  # in use
        (cache / "of another program").mkdir()
        kept = [folder.exists() for folder in folders]
        assert kept[0]
        assert kept[-1]
        assert sum(kept) == compiling._KEPT_FOLDERS


def test_a_function_that_is_not_a_kernel_cannot_be_called():
    """Functions that only kernels call have no machine code of their own."""
    from fireset.kernels.cosines import _chebyshev, function_of_cosines

    one = np.ones(25, np.float32)
    function_of_cosines(np.full((1, 1), 0.5, np.float32), one[:8], one, False, 0, 1)
    with pytest.raises(TypeError):
        _chebyshev(one[0], one, one[0])


@pytest.mark.slow
def test_compiling_and_loading_give_the_same_bits(tmp_path):
    """A process that compiles, one that loads, and one that loads in another order, for all engines and indexes."""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "support.result_bits"]
    compiled, loaded, otherwise = (
        json.loads(subprocess.run([*command, *order], env=environment, stdout=subprocess.PIPE, check=True).stdout)
        for order in ([], [], ["reversed"])
    )
    assert loaded == compiled
    assert otherwise == compiled


def test_called_functions_are_private():
    """A kernel exports only itself, so that it never calls the copy of a function in another kernel."""
    from fireset.kernels.steps import step_rows

    row = np.ones((1, 2))
    step_rows(row, row[:0], np.zeros(1, np.int64), row.copy(), 0.1, 0.0, False, np.empty(1), 0, 1)
    compiled = list(step_rows.overloads.values())
    modules = [kernel.library._get_module_for_linking() for kernel in compiled]
    defined = [function for module in modules for function in module.functions if not function.is_declaration]
    exported = [function.name for function in defined if function.linkage != Linkage.internal]
    assert exported
    assert all("step_rows" in name for name in exported)


class TestFunctionThatPythonCalls:
    """Compiled without optimization, and without counting references to arrays that the caller keeps alive."""

    @pytest.fixture
    def assembly(self):
        """LLVM code of a kernel that makes no array."""

        @compiling._compiler(fastmath=False, cache=False)
        def add(a, b):
            for i in range(a.size):
                a[i] += b[i]

        array = np.ones(2)
        add(array, array.copy())
        assert array.tolist() == [2.0, 2.0]
        return next(iter(add.inspect_llvm().values()))

    def test_is_not_optimized(self, assembly):
        heads = [line for line in assembly.splitlines() if line.startswith("define")]
        groups = {line.split()[1]: line for line in assembly.splitlines() if line.startswith("attributes #")}
        attributes = {
            compiling._WRAPPER in head: groups[next(word for word in head.split() if word.startswith("#"))]
            for head in heads
            if "NRT" not in head
        }
        assert "optnone" in attributes[True]
        assert "optnone" not in attributes.get(False, "")

    def test_counts_no_references(self, assembly):
        assert "NRT_decref" not in assembly

    def test_wrong_types_are_refused(self):
        from fireset.kernels.scanning import join_tiles

        with pytest.raises(TypeError):
            join_tiles(1)


def test_cycles_are_collected_again_after_compiling():
    @compiling._compiler(fastmath=False, cache=False)
    def collecting(x):
        return x + 1

    assert gc.isenabled()
    assert collecting(1) == 2
    assert gc.isenabled()
    gc.disable()
    try:
        assert collecting(1.0) == 2
        assert not gc.isenabled()
    finally:
        gc.enable()
