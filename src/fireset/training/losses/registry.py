"""Losses by name."""

from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from typing import Any

from fireset._util.errors import InputError
from fireset._util.registry import Registry
from fireset.training.losses.base import Loss

# Where each class is; what there is to say about it, the class says itself.
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
    """A loss by name, or the object itself."""
    if isinstance(loss, Loss):
        return loss
    if not isinstance(loss, str) or loss not in LOSSES:
        raise InputError(f"loss must be one of {', '.join(LOSSES)}; got {loss!r}")
    return LOSSES.load(loss, Loss)()


def check_task(loss: str | Loss, task: str) -> Loss:
    """A loss for "regression" or "classification", or the refusal of one that is not for it."""
    if not isinstance(loss, Loss) and (not isinstance(loss, str) or loss not in LOSSES):
        raise InputError(f"loss must be one of {_names_for(task)}; got {loss!r}")
    found = get_loss(loss)
    if task not in found.tasks:
        raise InputError(
            f"loss must be one of {_names_for(task)} for {task}; got {found.name!r}, which is for {found.tasks[0]}"
        )
    return found


def _names_for(task: str) -> str:
    return ", ".join(name for name in LOSSES if task in LOSSES.load(name, Loss).tasks)


def describe_loss(loss: Loss) -> dict[str, Any]:
    """A loss of the registry as a model file has it: its name and what it was made with."""
    if loss.name not in LOSSES or type(loss) is not LOSSES.load(loss.name, Loss):
        raise InputError(
            f"a model file knows the losses {', '.join(LOSSES)}, not {type(loss).__name__}; "
            "pickle the estimator instead"
        )
    return {"name": loss.name, **(asdict(loss) if is_dataclass(loss) else {})}


def restore_loss(described: Mapping[str, Any] | str) -> Loss:
    """The loss that ``describe_loss`` described; earlier versions wrote the name alone."""
    if not isinstance(described, Mapping):
        return get_loss(described)
    loss = get_loss(described.get("name", ""))
    known = {field.name for field in fields(loss)} if is_dataclass(loss) else set()
    made_with = {name: value for name, value in described.items() if name != "name"}
    if not made_with.keys() <= known:
        raise InputError(f"loss {loss.name!r} is not made with {', '.join(sorted(made_with.keys() - known))[:100]!r}")
    return type(loss)(**made_with)
