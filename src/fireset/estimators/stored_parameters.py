"""Parameters of an estimator as JSON text can hold them, and back.

A value that JSON has no type for is stored as a dict with a "kind".
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fireset._util.errors import InputError
from fireset.engines.base import Engine
from fireset.tables.cells import quoted
from fireset.training.losses import Loss, describe_loss, restore_loss
from fireset.training.solvers import Solver


def stored_parameters(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return what ``restored_parameters`` restores."""
    return {name: _stored(name, value) for name, value in parameters.items()}


def restored_parameters(stored: Any, names: set[str]) -> dict[str, Any]:
    """Return the parameters of these names out of a model file, which is untrusted."""
    if not isinstance(stored, dict) or set(stored) != names:
        raise InputError(f"parameters must be {', '.join(sorted(names))}; got {quoted(stored)}")
    return {name: _restored(name, value) for name, value in stored.items()}


def _stored(name: str, value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Loss):
        return {"kind": "loss", "made_with": describe_loss(value)}
    if isinstance(value, np.ndarray):
        return {"kind": "array", "type": value.dtype.str, "items": [_stored(name, item) for item in value.tolist()]}
    if isinstance(value, list | tuple):
        kind = {"kind": "tuple"} if isinstance(value, tuple) else {"kind": "list"}
        return {**kind, "items": [_stored(name, item) for item in value]}
    if isinstance(value, Mapping):
        return {"kind": "dict", "items": [[_stored(name, key), _stored(name, item)] for key, item in value.items()]}
    if isinstance(value, np.random.RandomState):
        state = value.get_state(legacy=False)
        key = state["state"]["key"].tolist()  # pyright: ignore[reportArgumentType,reportCallIssue]
        rest = [state["state"]["pos"], state["has_gauss"], state["gauss"]]  # pyright: ignore
        return {"kind": "random_state", "key": key, "rest": rest}
    if name == "dtype":
        return np.dtype(value).name
    own = f", for example {value.name!r}" if isinstance(value, Engine | Solver) else ""
    raise InputError(
        f"`{name}` must be a name{own}, for a model file, got an object of type {type(value).__name__}; "
        f"call set_params({name}=...) before saving, or pickle the estimator."
    )


def _restored(name: str, value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    kind = value.get("kind") if isinstance(value, dict) else None
    if kind == "loss" and name == "loss":
        return restore_loss(value["made_with"])
    if kind == "array":
        items, type_ = [_restored(name, item) for item in _items(name, value)], np.dtype(value["type"])
        if type_.kind not in "biufOU":  # others may ask for any amount of memory
            raise InputError(f"the parameter {name} cannot be an array of type {quoted(value['type'])}")
        return np.array(items, None if type_.kind == "U" else type_)
    if kind in ("list", "tuple"):
        restored = [_restored(name, item) for item in _items(name, value)]
        return tuple(restored) if kind == "tuple" else restored
    if kind == "dict":
        return {_restored(name, key): _restored(name, item) for key, item in _items(name, value)}
    if kind == "random_state" and name == "random_state":
        position, has_gauss, gauss = value["rest"]
        state = np.random.RandomState()
        state.set_state(("MT19937", np.array(value["key"], np.uint32), position, has_gauss, gauss))
        return state
    raise InputError(f"the parameter {name} cannot be {quoted(value)}")


def _items(name: str, value: dict) -> list:
    items = value["items"]
    if not isinstance(items, list):
        raise InputError(f"the parameter {name} cannot be {quoted(value)}")
    return items
