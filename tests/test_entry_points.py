"""Installed packages add engines, indexes, losses, solvers and column types by name."""

import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import fireset
from fireset import InputError
from fireset._util.registry import Registry
from fireset.engines import create
from fireset.engines.base import Engine
from fireset.engines.registry import ENGINES
from fireset.hsr import build
from fireset.hsr.base import HalfSpaceIndex
from fireset.hsr.registry import KINDS
from fireset.tables.column_types.base import ColumnType
from fireset.tables.column_types.registry import COLUMN_TYPES
from fireset.training.losses import LOSSES, Loss, get_loss
from fireset.training.solvers import SOLVERS, Solver, make_solver

SOURCE = """
from fireset.engines.dense import DenseEngine
from fireset.hsr.scan import ScanIndex
from fireset.tables.column_types.number import NumberColumn
from fireset.training.losses import SquaredError
from fireset.training.solvers import GradientDescent

class NearbyEngine(DenseEngine):
    name = "nearby"
    summary = "as dense"

class NearbyIndex(ScanIndex):
    kind = "nearby"

class NearbyError(SquaredError):
    name = "nearby_error"

class NearbyDescent(GradientDescent):
    name = "nearby"

class NearbyColumn(NumberColumn):
    kind = "nearby"

not_a_class = 3
"""

ENTRY_POINTS = {
    "fireset.engines": {"nearby": "nearby:NearbyEngine"},
    "fireset.indexes": {"nearby": "nearby:NearbyIndex"},
    "fireset.losses": {"nearby_error": "nearby:NearbyError"},
    "fireset.solvers": {"nearby": "nearby:NearbyDescent"},
    "fireset.column_types": {"nearby": "nearby:NearbyColumn"},
}


def install(folder: Path, entry_points: dict[str, dict[str, str]], package: str = "nearby") -> None:
    """A distribution in a folder of the path, with its entry points."""
    (folder / "nearby.py").write_text(SOURCE, encoding="utf-8")
    about = folder / f"{package}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n", encoding="utf-8")
    lines = [
        f"[{group}]\n" + "".join(f"{name} = {place}\n" for name, place in one.items())
        for group, one in entry_points.items()
    ]
    (about / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")


def run(folder: Path, code: str) -> str:
    """What a new process prints that has the folder on its path."""
    setup = f"import sys; sys.path[:0] = {[str(folder), str(Path(fireset.__file__).parents[1])]!r}\n"
    setup += "import numpy as np\nimport fireset\nX = np.random.default_rng(0).standard_normal((60, 3))\ny = X[:, 0]\n"
    done = subprocess.run(
        [sys.executable, "-c", setup + textwrap.dedent(code)], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_all_four_kinds(tmp_path):
    install(tmp_path, ENTRY_POINTS)
    shown = run(
        tmp_path,
        """
        assert "nearby" not in sys.modules
        assert "nearby" in [one["name"] for one in fireset.engines.describe()]
        assert "nearby" in fireset.hsr.kinds()
        index = fireset.hsr.build(X, "nearby")
        assert type(index).__name__ == "NearbyIndex" and len(index) == 60
        plain = fireset.ShiftedReLURegressor(50, engine="dense", solver="gradient", max_iter=3, random_state=0)
        own = fireset.ShiftedReLURegressor(
            50, engine="nearby", solver="nearby", loss="nearby_error", max_iter=3, random_state=0
        )
        assert np.array_equal(plain.fit(X, y).predict(X), own.fit(X, y).predict(X))
        fireset.save(own, sys.path[0] + "/model")
        again = fireset.load(sys.path[0] + "/model")
        assert again.get_params() == own.get_params()
        assert np.array_equal(again.predict(X), own.predict(X))
        print(own.result_.engine, own.result_.solver)
        """,
    )
    assert shown.split() == ["nearby", "nearby"]


@pytest.mark.slow
def test_names_of_the_package_itself_need_no_search(tmp_path):
    install(tmp_path, {"fireset.engines": {"broken": "no_such_module:Engine"}})
    shown = run(
        tmp_path,
        """
        import importlib.metadata as metadata
        search = metadata.entry_points
        def watched(**options):
            assert not options.get("group", "").startswith("fireset."), "no search was needed"
            return search(**options)
        metadata.entry_points = watched
        fireset.ShiftedReLURegressor(50, engine="dense", solver="gradient", max_iter=2).fit(X, y)
        fireset.ShiftedReLURegressor(50, loss="huber").fit(X, y)
        fireset.hsr.build(X, "scan")
        print("done")
        """,
    )
    assert shown.strip() == "done"


REGISTRIES = {
    one.group: (one, base)
    for one, base in (
        (ENGINES, Engine),
        (KINDS, HalfSpaceIndex),
        (LOSSES, Loss),
        (SOLVERS, Solver),
        (COLUMN_TYPES, ColumnType),
    )
}


def refused(folder: Path, group: str, name: str, monkeypatch) -> str:
    """The InputError that looking a name up ends in, with the folder on the path."""
    registry, base = REGISTRIES[group]
    fresh = Registry(group, registry._built_in, registry._name_attribute)
    with monkeypatch.context() as patch:
        patch.syspath_prepend(folder)
        with pytest.raises(InputError) as error:
            fresh.load(name, base)
    return str(error.value)


@pytest.mark.parametrize("group", REGISTRIES)
def test_what_is_refused(group, tmp_path, monkeypatch):
    place = next(iter(ENTRY_POINTS[group].values()))
    taken = next(iter(REGISTRIES[group][0]._built_in))
    folders = [tmp_path / name for name in ("absent", "number", "misnamed", "taken", "twice")]
    for folder in folders:
        folder.mkdir()
    absent, number, misnamed, clash, twice = folders
    install(absent, {group: {"far": "no_such_module:Thing"}})
    message = refused(absent, group, "far", monkeypatch)
    assert "'far'" in message
    assert "no_such_module" in message
    install(number, {group: {"far": "nearby:not_a_class"}})
    assert "nearby:not_a_class" in refused(number, group, "far", monkeypatch)
    install(misnamed, {group: {"far": place}})
    message = refused(misnamed, group, "far", monkeypatch)
    assert "'far'" in message
    assert "'nearby" in message
    install(clash, {group: {taken: place, "far": place}})
    message = refused(clash, group, "far", monkeypatch)
    assert f"'{taken}'" in message
    assert "fireset and nearby" in message
    install(twice, ENTRY_POINTS)
    install(twice, {group: ENTRY_POINTS[group]}, "another")
    message = refused(twice, group, next(iter(ENTRY_POINTS[group])), monkeypatch)
    assert "another" in message
    assert "nearby" in message


def test_names_that_nobody_has():
    for lookup in (
        lambda: create("nobody"),
        lambda: build(np.eye(3), "nobody"),
        lambda: get_loss("nobody"),
        lambda: make_solver("nobody", {}),
    ):
        with pytest.raises(InputError, match="'nobody'"):
            lookup()
