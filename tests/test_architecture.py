"""Imports point one way, numba and torch stay where they belong, modules stay small, and public names exist."""

import ast
import json
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import fireset

ROOT = Path(fireset.__file__).parent
MODULES = {
    ".".join(("fireset", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in sorted(ROOT.rglob("*.py"))
}

# From the bottom up. A module imports from lower layers only; a package is one entry and may import itself. Modules of
# one layer do not know each other. ``fireset`` itself is the list of public names, and no layer.
LAYERS = [
    {"errors", "figures", "parallel", "rounding", "kernels", "sphere"},
    {"files", "history", "hsr", "initialization", "losses", "table_encoder"},
    {"data", "network", "quantum", "theory"},  # quantum knows searches and circuits, and no engine: two engines use it
    {"engines"},
    {"learning_rate", "safety", "warmup", "distributed", "memory", "peers"},
    {"checkpoint"},
    {"training"},
    {"progress", "tensorboard_log"},
    {"estimators"},
    {"model", "report", "table_problem"},
    {"demo", "tasks"},
    {"cli"},
    {"__main__"},
]
LEVEL = {name: level for level, layer in enumerate(LAYERS) for name in layer}

LINES_ASKED = 400
LINES_ALLOWED = 450


def part(module: str) -> str:
    """The entry of ``LAYERS`` that a module belongs to."""
    return module.split(".")[1]


def imports(module: str) -> set[str]:
    """Every module imported anywhere in the file: lazily, for type checking, or by name for ``import_module``."""
    found = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}, line {node.lineno}: imports are written in full here"
            assert node.module is not None
            found |= {_meant(node.module, alias.name) for alias in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in MODULES:
            found.add(node.value)
    return found


def _meant(module: str, name: str) -> str:
    """Where ``from module import name`` leads: a submodule, the home of a public name, or the module itself."""
    if f"{module}.{name}" in MODULES:
        return f"{module}.{name}"
    if module == "fireset":
        return f"fireset.{fireset._WHERE[name]}" if name in fireset._WHERE else "fireset"
    return module


def is_from(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


@pytest.mark.parametrize("module", [m for m in MODULES if m != "fireset"])
def test_imports_point_one_way(module):
    assert part(module) in LEVEL, f"{module} has no layer yet: give it one in LAYERS"
    for imported in imports(module):
        if not is_from(imported, "fireset") or imported == "fireset" or part(imported) == part(module):
            continue
        assert LEVEL[part(imported)] < LEVEL[part(module)], f"{module} imports {imported}, which is not below it"


def test_every_layer_has_modules():
    """A name in LAYERS is a module, or one that the design has planned."""
    planned: set[str] = set()
    assert set(LEVEL) <= {part(m) for m in MODULES if m != "fireset"} | planned


def test_only_kernels_import_numba():
    who = {module for module in MODULES for imported in imports(module) if is_from(imported, "numba")}
    assert who
    assert all(is_from(module, "fireset.kernels") for module in who), who


def test_torch_and_jax_stay_where_they_belong():
    who = {module for module in MODULES for imported in imports(module) if is_from(imported, "torch")}
    assert who <= {"fireset.distributed.process_group", "fireset.commands.peers"}
    assert {m for m in MODULES for imported in imports(m) if is_from(imported, "jax")} == {"fireset.commands.peers"}


@pytest.mark.parametrize("module", MODULES)
def test_modules_are_small(module):
    lines = len(MODULES[module].read_text(encoding="utf-8").splitlines())
    if lines >= LINES_ASKED:
        warnings.warn(f"{module} has {lines} lines; {LINES_ASKED} are asked for", stacklevel=1)
    assert lines <= LINES_ALLOWED


@pytest.mark.parametrize("module", MODULES)
def test_every_module_says_what_it_is(module):
    assert ast.get_docstring(ast.parse(MODULES[module].read_text(encoding="utf-8")))


# Public names


def test_public_names_are_listed_and_exist():
    assert dir(fireset) == sorted(fireset.__all__)
    assert len(set(fireset.__all__)) == len(fireset.__all__)
    for name in fireset.__all__:
        assert getattr(fireset, name) is not None
    assert {"ShiftedReLUNetwork", "ShiftedReLURegressor", "ShiftedReLUClassifier", "train"} <= set(fireset.__all__)


def test_type_checkers_see_the_same_names():
    tree = ast.parse(MODULES["fireset"].read_text(encoding="utf-8"))
    guarded = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {
        alias.name
        for block in guarded
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == set(fireset.__all__)


def test_other_names_are_refused():
    with pytest.raises(AttributeError, match=r"^module 'fireset' has no attribute 'Network'$"):
        _ = fireset.Network  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("package", ["engines", "hsr", "quantum", "theory"])
def test_names_of_packages_exist(package):
    module = getattr(fireset, package)
    assert module.__name__ == f"fireset.{package}"
    for name in module.__all__:
        assert getattr(module, name) is not None


def loaded_after(code: str) -> set[str]:
    """Top-level packages in memory after running ``code`` in a fresh interpreter."""
    script = f"import json, sys\n{code}\nprint(json.dumps([m.split('.')[0] for m in sys.modules]), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    return set(json.loads(done.stderr.splitlines()[-1]))


HELP = """
from typer.testing import CliRunner
from fireset.cli import app
assert CliRunner().invoke(app, ["--help"]).exit_code == 0
"""


@pytest.mark.parametrize("code", ["import fireset", HELP], ids=["import", "help"])
def test_nothing_heavy_is_loaded_before_it_is_needed(code):
    loaded = loaded_after(code)
    assert "fireset" in loaded
    assert not loaded & {"numba", "torch", "sklearn", "scipy", "polars"}
