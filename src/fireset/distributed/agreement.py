"""Check that all workers were given the same settings, before an exchange that would wait for the others.

Workers train one network only if they run the same program on the same data. A worker with another learning rate
computes steps of another run; one with another solver makes other exchanges, and the workers wait for each other.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from inspect import signature
from typing import Any

import numpy as np

from fireset._util.errors import InputError
from fireset.distributed.process_group import ProcessGroup

_MAX_TEXT = 200  # characters of a value in a message
_PLAIN = (str, int, float, complex, bool, type(None))


def check_same(group: ProcessGroup, settings: Mapping[str, Any]) -> None:
    """Raise ``InputError`` on all workers unless ``settings`` are equal on all of them.

    The message names each setting that differs, with the values and ranks of two workers. Two exchanges; the texts of
    the settings are what is sent.
    """
    if group.size == 1:
        return
    own = {name: describe(value) for name, value in settings.items()}
    workers = [json.loads(text) for text in all_gather_texts(group, json.dumps(own))]
    names = {name: None for worker in workers for name in worker}  # in order, each once
    differences = filter(None, (_difference(name, [worker.get(name) for worker in workers]) for name in names))
    message = "; ".join(differences)
    if message:
        raise InputError(message)


@contextmanager
def failing_together(group: ProcessGroup) -> Iterator[None]:
    """Raise an ``InputError`` of one worker's block on all workers."""
    failure: InputError | None = None
    try:
        yield
    except InputError as error:
        failure = error
    if group.size == 1:
        if failure:
            raise failure
        return
    if group.all_true(failure is None):
        return
    messages = all_gather_texts(group, json.dumps(str(failure) if failure else ""))
    if failure:
        raise failure
    raise InputError(
        next(f"worker {rank}: {json.loads(message)}" for rank, message in enumerate(messages) if json.loads(message))
    )


def describe(value: Any) -> str:
    """Text that is equal for equal settings, on any worker."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, np.ndarray):
        return f"{value.dtype} array of shape {value.shape}, digest {_array_digest(value)}"
    if isinstance(value, np.random.RandomState):
        return f"RandomState, digest {_digest(repr(value.get_state()).encode())}"
    if isinstance(value, np.random.Generator):
        return f"Generator, digest {_digest(repr(value.bit_generator.state).encode())}"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{describe(key)}: {describe(item)}' for key, item in value.items())}}}"
    if isinstance(value, (list, tuple, set, frozenset)):
        items = map(describe, value)
        return f"[{', '.join(sorted(items) if isinstance(value, (set, frozenset)) else items)}]"
    if type(value).__str__ is not object.__str__ or type(value).__repr__ is not object.__repr__:
        return str(value)
    return f"{type(value).__name__}({', '.join(f'{k}={describe(v)}' for k, v in _arguments(value).items())})"


def _arguments(value: Any) -> dict[str, Any]:
    """Arguments of an object's constructor, as far as attributes of that name hold them."""
    names = signature(type(value)).parameters
    stored = {name: getattr(value, name, getattr(value, f"_{name}", value)) for name in names}
    return {name: found for name, found in stored.items() if isinstance(found, (*_PLAIN, np.generic, np.ndarray))}


def _difference(name: str, values: list[str | None]) -> str:
    other = next((rank for rank, value in enumerate(values) if value != values[0]), None)
    if other is None:
        return ""
    first, second = (_shortened(value) for value in (values[0], values[other]))
    return f"{name} must be the same on all workers, got {first} on worker 0 and {second} on worker {other}"


def _shortened(value: str | None) -> str:
    if value is None:
        return "nothing"
    return value if len(value) <= _MAX_TEXT else value[:_MAX_TEXT] + "…"


def all_gather_texts(group: ProcessGroup, text: str) -> list[str]:
    """The texts of all workers, in the order of their ranks. They may differ in length, and must be ASCII."""
    block = text.encode("ascii")
    longest = group.all_reduce_max(len(block))
    return [theirs.rstrip(b"\0").decode("ascii") for theirs in group.all_gather(block.ljust(longest, b"\0"))]


def _array_digest(array: np.ndarray) -> str:
    if array.dtype.hasobject:
        return _digest(repr(array.tolist()).encode())
    return _digest(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def _digest(content: bytes | memoryview) -> str:
    return hashlib.blake2b(content, digest_size=8).hexdigest()
