"""Registries of classes by name, which are imported on first use.

Installed packages can add classes by entry points of the registry's group, such as ``fireset.engines``.
"""

from collections.abc import Iterator, Mapping
from functools import cached_property, reduce
from importlib import import_module, metadata
from inspect import isclass
from typing import Any

from fireset._util.errors import InputError


class Registry(Mapping[str, str]):
    """Map from names to "package.module:Name", for classes of this package and for entry points of other packages.

    Entry points are read only if a name is not built in, or if names are listed.

    Parameters
    ----------
    group : str
        Group of the entry points.
    built_in : dict
        Classes of this package, as "package.module:Name".
    name_attribute : str
        Attribute of a class with its name.
    """

    def __init__(self, group: str, built_in: dict[str, str], name_attribute: str = "name"):
        self.group = group
        self._built_in = built_in
        self._name_attribute = name_attribute

    def __getitem__(self, name: str) -> str:
        return self._built_in[name] if name in self._built_in else self._installed[name].value

    def __contains__(self, name: object) -> bool:
        return name in self._built_in or name in self._installed

    def __iter__(self) -> Iterator[str]:
        return iter([*self._built_in, *self._installed])

    def __len__(self) -> int:
        return len(self._built_in) + len(self._installed)

    def load(self, name: str, base: type) -> Any:
        """Import and return the class with this name, a subclass of ``base``."""
        if name in self._built_in:
            return _import_object(self._built_in[name])
        entry = self._installed[name]
        described = f"the entry point {name!r} of {self.group}, from the package {_package(entry)},"
        try:
            found = _import_object(entry.value)
        except (ImportError, AttributeError) as error:
            raise InputError(f"{described} cannot be imported: {error}; repair or uninstall the package.") from error
        if not isclass(found) or not issubclass(found, base):
            raise InputError(f"{described} must be a subclass of {base.__name__}, got {entry.value}.")
        own = getattr(found, self._name_attribute, None)
        if own != name:
            raise InputError(f"{described} must have {self._name_attribute}={name!r}, got {own!r}.")
        return found

    @cached_property
    def _installed(self) -> dict[str, metadata.EntryPoint]:
        """Entry points by name. A name that is in use already raises an InputError."""
        found: dict[str, metadata.EntryPoint] = {}
        for entry in metadata.entry_points(group=self.group):
            owner = "fireset" if entry.name in self._built_in else None
            if entry.name in found:
                if found[entry.name].value == entry.value and _package(found[entry.name]) == _package(entry):
                    continue  # one distribution that is on the path twice
                owner = _package(found[entry.name])
            if owner is not None:
                raise InputError(
                    f"the entry point {entry.name!r} of {self.group} is given by the packages {owner} and "
                    f"{_package(entry)}; uninstall one of them, or rename the entry point."
                )
            found[entry.name] = entry
        return found


def _import_object(location: str) -> Any:
    """Import the object ``"package.module:Name"``."""
    module, _, name = location.partition(":")
    return reduce(getattr, name.split("."), import_module(module))


def _package(entry: metadata.EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else "unknown"
