"""``help`` documents every parameter, attribute and method of the estimators."""

import inspect
import pydoc
import re

import numpy as np
import polars as pl
import pytest

from fireset import ShiftedReLUClassifier, ShiftedReLURegressor

ESTIMATORS = [ShiftedReLUClassifier, ShiftedReLURegressor]
INHERITED = {"get_params", "set_params", "get_metadata_routing"}  # documented by scikit-learn


def entries(doc: str, title: str) -> dict[str, str]:
    """Names and types of a section of a numpydoc text; ``a, b : type`` are two."""
    match = re.search(rf"^{title}\n-+\n(.*?)(?=^\w[^\n]*\n-+\n|\Z)", inspect.cleandoc(doc), re.DOTALL | re.MULTILINE)
    found = {}
    for line in match.group(1).splitlines() if match else ():
        if line and not line.startswith(" "):
            names, _, kind = line.partition(" : ")
            found |= {name.strip(): kind for name in names.split(",")}
    return found


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_parameters(kind):
    documented = entries(kind.__doc__, "Parameters")
    parameters = inspect.signature(kind).parameters
    assert list(documented) == list(parameters)
    for name, parameter in parameters.items():
        default = parameter.default
        shown = f'"{default}"' if isinstance(default, str) else repr(default)
        assert documented[name].endswith(f", default={shown}"), name


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_attributes(kind):
    table = pl.DataFrame({"a": np.arange(50.0), "b": ["u", "v"] * 25})
    model = kind(width=50, random_state=0).fit(table, np.arange(50) % 2)
    fitted = {name for name in vars(model) if name.endswith("_") and not name.startswith("_")}
    assert set(entries(kind.__doc__, "Attributes")) == {*fitted, "feature_importances_"}


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_methods(kind):
    for name, method in inspect.getmembers(kind, inspect.isfunction):
        if name.startswith(("_", "set_")) or name in INHERITED:
            continue
        assert method.__doc__, name
        own = [one for one in inspect.signature(method).parameters if one != "self"]
        if name in ("width_for", "solver_for", "to_onnx", "rows_on_sphere"):
            continue  # one or two arguments, described in the text
        assert set(entries(method.__doc__, "Parameters")) == set(own), name
        assert entries(method.__doc__, "Returns"), name


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_help_is_shown(kind):
    text = pydoc.render_doc(kind, renderer=pydoc.plaintext)
    for name in [*inspect.signature(kind).parameters, "X_val", "feature_importances_"]:
        assert name in text
