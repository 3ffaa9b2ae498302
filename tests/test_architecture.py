"""Imports point in one direction, numba and torch are imported in few packages only, and public names exist."""

import ast
import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import fireset
from support.pages import ROOT as DOCS_ROOT
from support.pages import blocks

ROOT = Path(fireset.__file__).parent
MODULES = {
    ".".join(("fireset", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in sorted(ROOT.rglob("*.py"))
}

# From the bottom up. A module imports from lower layers only; a package is one entry and may import itself. Modules of
# one layer do not know each other. ``fireset`` itself is the list of public names, and no layer.
LAYERS = [
    {"_util", "kernels"},
    {"sparse_rows"},
    {"hsr", "fire_sets", "initialization"},
    {"network", "quantum"},  # quantum knows searches and circuits, and no engine: two engines use it
    {"engines"},
    {"theory", "distributed"},
    {"training", "nn"},
    {"reporting", "tables"},
    {"estimators"},
    {"model"},
    {"commands"},
    {"cli"},
    {"__main__"},
]
LEVEL = {name: level for level, layer in enumerate(LAYERS) for name in layer}

MODULES_ON_TOP = 8


def part(module: str) -> str:
    """The entry of ``LAYERS`` that a module belongs to."""
    return module.split(".")[1]


@cache
def imports(module: str) -> set[str]:
    """Every module imported anywhere in the file: lazily, for type checking, or by name for ``import_module``."""
    found = set()
    for node in ast.walk(trees()[module]):
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
        return f"fireset.{fireset._MODULES[name]}" if name in fireset._MODULES else "fireset"
    return module


def is_from(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def importers(package: str) -> set[str]:
    """The modules that import a package or a part of it."""
    return {module for module in MODULES if any(is_from(imported, package) for imported in imports(module))}


@cache
def trees() -> dict[str, ast.Module]:
    return {module: ast.parse(path.read_text(encoding="utf-8")) for module, path in MODULES.items()}


def test_every_module_has_a_layer_and_every_layer_has_modules():
    assert {part(module) for module in MODULES if module != "fireset"} == set(LEVEL)


def test_imports_point_one_way():
    wrong = [
        f"{module} imports {imported}, which is not below it"
        for module in MODULES
        if module != "fireset"
        for imported in sorted(imports(module))
        if is_from(imported, "fireset") and imported != "fireset" and part(imported) != part(module)
        if LEVEL[part(imported)] >= LEVEL[part(module)]
    ]
    assert not wrong, "\n".join(wrong)


def diagrams() -> list[str]:
    """The text diagrams of docs/architecture.md: layers, training, prediction."""
    return blocks(DOCS_ROOT / "docs" / "architecture.md", "text")


def test_the_architecture_page_shows_every_layer_in_order():
    cells = [line.split("│")[1].split() for line in diagrams()[0].splitlines() if line.startswith("│")]
    assert [set(names) for names in cells] == LAYERS[::-1]


def test_the_architecture_page_names_existing_modules():
    named = [path for diagram in diagrams()[1:] for path in re.findall(r"[\w/]+\.py\b", diagram)]
    assert len(set(named)) > 15
    assert not [path for path in named if not (ROOT / path).is_file()]


@pytest.mark.parametrize("package", ["numba", "llvmlite"])
def test_only_kernels_are_compiled(package):
    who = importers(package)
    assert who
    assert not [module for module in who if not is_from(module, "fireset.kernels")]


def test_torch_and_jax_stay_where_they_belong():
    allowed = ("fireset.distributed", "fireset.commands.compare.engine_contenders", "fireset.nn")
    assert not [module for module in importers("torch") if not any(is_from(module, each) for each in allowed)]
    assert importers("jax") == {"fireset.commands.compare.engine_contenders"}


def test_few_modules_lie_on_top():
    """Whatever has company has a room of its own."""
    on_top = sorted(path.name for path in MODULES.values() if path.parent == ROOT)
    assert len(on_top) <= MODULES_ON_TOP, on_top


def test_every_module_says_what_it_is():
    assert not [module for module, tree in trees().items() if not ast.get_docstring(tree)]


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


def test_hsr_imports_numba_only_with_a_kind():
    """Modules of kinds import kernels at the top; the registry loads them when an index is built."""
    assert "numba" not in loaded_after("import fireset.hsr, fireset.network; fireset.hsr.kinds()")


@pytest.mark.parametrize("code", ["import fireset", HELP], ids=["import", "help"])
def test_nothing_heavy_is_loaded_before_it_is_needed(code):
    loaded = loaded_after(code)
    assert "fireset" in loaded
    assert not loaded & {"numba", "torch", "sklearn", "scipy", "polars"}


# Extension points

NAMED_BY = {  # modules that may name an engine, a loss, a solver or a column type, besides registries and its own file
    "fireset.engines.blocks": "processes the engine data in blocks",
    "fireset.engines.cost": "the cost model of 'auto'",
    "fireset.training.solvers.mini_batches": "the solver gradient on batches",
    "fireset.training.solvers.nystrom": "a subclass of the solver gauss-newton",
    "fireset.estimators.batch_steps": "a subclass of the solver gradient",
    "fireset.commands.demo": "shows the engine data",
    "fireset.commands.quantum": "compares the quantum engines with the engine data",
    "fireset.tables.encoder": "columns of an array are numbers",
}
MAKERS = {"create", "engine_class", "solver_class", "make_solver", "get_loss", "check_task"}
OTHER_CHOICES = {"kind", "_layout", "layout", "scores"}  # attributes whose values are not names of extension points


def extension_points() -> dict[str, str]:
    """Names and class names of the built-in engines, losses, solvers and column types, with their module."""
    from fireset.engines.registry import ENGINES
    from fireset.tables.column_types.registry import COLUMN_TYPES
    from fireset.training.losses.registry import LOSSES
    from fireset.training.solvers.registry import SOLVERS

    found = {}
    for registry in (ENGINES, LOSSES, SOLVERS, COLUMN_TYPES):
        for name, place in registry._built_in.items():
            module, _, kind = place.partition(":")
            found |= {kind: module} | ({} if registry is COLUMN_TYPES else {name: module})
    return found


def last_name(node: ast.AST) -> str:
    """``c`` for the expressions ``a.b.c``, ``c`` and ``c(…)``."""
    if isinstance(node, ast.Call):
        return last_name(node.func)
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def named_extension_points(tree: ast.AST, points: dict[str, str]) -> set[str]:
    """Classes that a module refers to, and names that it compares with, passes to a maker or to ``engine=``."""
    found = set()
    for node in ast.walk(tree):
        strings: list[ast.AST] = []
        if isinstance(node, ast.Compare) and last_name(node.left) not in OTHER_CHOICES:
            sides = [node.left, *node.comparators]
            if not any(last_name(side) in OTHER_CHOICES for side in sides):
                strings = [each for side in sides for each in (*getattr(side, "elts", ()), side)]
        elif isinstance(node, ast.Call):
            strings = [each.value for each in node.keywords if each.arg in ("engine", "solver", "loss")]
            strings += node.args[:1] if last_name(node) in MAKERS else []
        elif isinstance(node, ast.Name | ast.Attribute) and last_name(node) in points and last_name(node)[0].isupper():
            found.add(last_name(node))
        found |= {one.value for one in strings if isinstance(one, ast.Constant) and one.value in points}
    return found


def test_engines_losses_solvers_and_column_types_are_named_by_registries_only():
    points = extension_points()
    wrong, used = [], set()
    for module, tree in trees().items():
        if module.endswith((".registry", ".__init__")) or MODULES[module].name == "__init__.py":
            continue
        foreign = {name for name in named_extension_points(tree, points) if points[name] != module}
        if foreign and module in NAMED_BY:
            used.add(module)
        elif foreign:
            wrong.append(f"{module} names {', '.join(sorted(foreign))}")
    assert not wrong, "\n".join(wrong)
    assert used >= NAMED_BY.keys() - {"fireset.engines.cost"}  # which has a dict by name


def test_a_comparison_with_a_name_is_found():
    tree = ast.parse("def f(run):\n    if run.solver != 'gradient':\n        create('dense')\n    return Huber(1.0)")
    assert named_extension_points(tree, extension_points()) == {"gradient", "dense", "Huber"}
