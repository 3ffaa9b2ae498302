"""Exact training of very wide two-layer shifted-ReLU networks at the cost of their active pairs."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fireset import engines, hsr, quantum, theory
    from fireset._util.errors import CertificateError, InputError
    from fireset.estimators import ShiftedReLUClassifier, ShiftedReLURegressor
    from fireset.model import load, save
    from fireset.network import ShiftedReLUNetwork
    from fireset.training.checkpoint import Checkpoints
    from fireset.training.loop import Trainer, train
    from fireset.training.tensorboard import TensorBoardLog

__version__ = "0.1.0"

__all__ = [
    "CertificateError",
    "Checkpoints",
    "InputError",
    "ShiftedReLUClassifier",
    "ShiftedReLUNetwork",
    "ShiftedReLURegressor",
    "TensorBoardLog",
    "Trainer",
    "engines",
    "hsr",
    "load",
    "quantum",
    "save",
    "theory",
    "train",
]

# Imported on first access, so that `import fireset` and `fireset --help` need neither numba nor scikit-learn.
_MODULES = {
    "CertificateError": "_util.errors",
    "Checkpoints": "training.checkpoint",
    "InputError": "_util.errors",
    "ShiftedReLUClassifier": "estimators",
    "ShiftedReLUNetwork": "network",
    "ShiftedReLURegressor": "estimators",
    "TensorBoardLog": "training.tensorboard",
    "Trainer": "training.loop",
    "load": "model",
    "save": "model",
    "train": "training.loop",
}
_PACKAGES = {"engines", "hsr", "quantum", "theory"}


def __getattr__(name: str):
    if name in _PACKAGES:
        return import_module(f"fireset.{name}")
    if name in _MODULES:
        return getattr(import_module(f"fireset.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'fireset' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
