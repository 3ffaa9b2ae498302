"""Losses by name."""

from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from typing import Any

from fireset._util.errors import InputError
from fireset._util.registry import Registry
from fireset.training.losses.base import Loss

_BUILT_IN = {
    "squared_error": "fireset.training.losses.squared_error:SquaredError",
    "log_loss": "fireset.training.losses.log_loss:LogLoss",
    "absolute_error": "fireset.training.losses.absolute_error:AbsoluteError",
    "huber": "fireset.training.losses.huber:Huber",
    "quantile": "fireset.training.losses.quantile:Quantile",
    "poisson": "fireset.training.losses.poisson:Poisson",
}
LOSSES = Registry("fireset.losses", _BUILT_IN)


def get_loss(loss: str | Loss) -> Loss:
    """Return the loss of a name, or ``loss`` itself if it is an object."""
    if isinstance(loss, Loss):
        return loss
    if not isinstance(loss, str) or loss not in LOSSES:
        raise InputError(f"`loss` must be one of {', '.join(LOSSES)}, got {loss!r}.")
    return LOSSES.load(loss, Loss)()


def losses_with(parameter: str) -> list[str]:
    """Return the names of the losses that have this parameter."""
    return [name for name in LOSSES if parameter in _parameters(LOSSES.load(name, Loss))]


def _parameters(kind: type[Loss]) -> set[str]:
    return {field.name for field in fields(kind)} if is_dataclass(kind) else set()


def check_task(loss: str | Loss, task: str) -> Loss:
    """Return the loss for "regression" or "classification"; raise InputError for a loss of the other task."""
    if not isinstance(loss, Loss) and (not isinstance(loss, str) or loss not in LOSSES):
        raise InputError(f"`loss` must be one of {_names_for(task)}, got {loss!r}.")
    found = get_loss(loss)
    if task not in found.tasks:
        raise InputError(
            f"`loss` must be one of {_names_for(task)} for {task}, got {found.name!r}, which is for {found.tasks[0]}."
        )
    return found


def _names_for(task: str) -> str:
    return ", ".join(name for name in LOSSES if task in LOSSES.load(name, Loss).tasks)


def describe_loss(loss: Loss) -> dict[str, Any]:
    """Return the name and the parameters of a registered loss, for a model file."""
    if loss.name not in LOSSES or type(loss) is not LOSSES.load(loss.name, Loss):
        raise InputError(
            f"`loss` must be one of {', '.join(LOSSES)} to be stored in a model file, got {type(loss).__name__}; "
            "pickle the estimator instead."
        )
    return {"name": loss.name, **(asdict(loss) if is_dataclass(loss) else {})}


def restore_loss(described: Mapping[str, Any]) -> Loss:
    """Return the loss that ``describe_loss`` described. The input comes from an untrusted file."""
    if not isinstance(described, Mapping):
        raise InputError(f"A stored loss must be a mapping with a name, got {str(described)[:40]!r}.")
    loss = get_loss(described.get("name", ""))
    known = _parameters(type(loss))
    parameters = {name: value for name, value in described.items() if name != "name"}
    if not parameters.keys() <= known:
        unknown = ", ".join(sorted(parameters.keys() - known))[:100]
        raise InputError(f"Loss {loss.name!r} has no parameters {unknown!r}.")
    return type(loss)(**parameters)
