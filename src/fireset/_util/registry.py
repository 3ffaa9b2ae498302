"""Classes by name: registries say where a class is, and it is imported when it is asked for."""

from importlib import import_module
from typing import Any


def load(place: str) -> Any:
    """What ``"package.module:Name"`` names."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)
