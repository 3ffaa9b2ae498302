"""Check that all workers have the same settings, and raise errors on all workers.

Workers train one network only if they run the same program on the same data. A worker with another learning rate
computes steps of another run; one with another solver makes other exchanges, and all workers wait for ever.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from inspect import signature
from typing import Any

import numpy as np

from fireset._util.errors import InputError, WorkerLostError
from fireset.distributed.process_group import ProcessGroup

_MAX_CHARACTERS = 200  # of a value in a message
_SHARED_ERRORS = (InputError, FloatingPointError, np.linalg.LinAlgError, MemoryError)
_SCALAR_TYPES = (str, int, float, complex, bool, type(None))


def check_same(group: ProcessGroup, settings: Mapping[str, Any]) -> None:
    """Raise ``InputError`` on all workers unless ``settings`` are equal on all of them.

    The message names each setting that differs, with the values and ranks of two workers. Takes two exchanges of the
    settings as text.
    """
    if group.size == 1:
        return
    own = {name: describe(value) for name, value in settings.items()}
    workers = [json.loads(text) for text in all_gather_texts(group, json.dumps(own))]
    names = {name: None for worker in workers for name in worker}  # ordered and distinct
    differences = filter(None, (_difference(name, [worker.get(name) for worker in workers]) for name in names))
    message = "; ".join(differences)
    if message:
        raise InputError(message)


@contextmanager
def raise_on_all_workers(group: ProcessGroup) -> Iterator[None]:
    """Raise an error on all workers if this block raises one on one of them, such as a failed factorization.

    Otherwise the others would wait in their next exchange. Types that are not in ``_SHARED_ERRORS`` become a
    RuntimeError on the other workers.
    """
    failure: Exception | None = None
    try:
        yield
    except WorkerLostError:
        raise
    except Exception as error:
        failure = error
    if group.size == 1:
        if failure:
            raise failure
        return
    if group.all_true(failure is None):
        return
    found = map(json.loads, all_gather_texts(group, json.dumps([type(failure).__name__, str(failure)])))
    if failure:
        raise failure
    rank, (name, message) = next((rank, one) for rank, one in enumerate(found) if one[0] != "NoneType")
    kinds = {kind.__name__: kind for kind in _SHARED_ERRORS}
    raise kinds.get(name, RuntimeError)(f"worker {rank}: {message}")


def describe(value: Any) -> str:
    """Return a text that is equal for equal settings on all workers."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, _SCALAR_TYPES):
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
    """Return the constructor arguments of an object that it stores in attributes of the same name."""
    names = signature(type(value)).parameters
    stored = {name: getattr(value, name, getattr(value, f"_{name}", value)) for name in names}
    return {
        name: found for name, found in stored.items() if isinstance(found, (*_SCALAR_TYPES, np.generic, np.ndarray))
    }


def _difference(name: str, values: list[str | None]) -> str:
    """Return a message if the values differ, else an empty string."""
    other = next((rank for rank, value in enumerate(values) if value != values[0]), None)
    if other is None:
        return ""
    first, second = (_shortened(value) for value in (values[0], values[other]))
    return f"{name} must be the same on all workers, got {first} on worker 0 and {second} on worker {other}"


def _shortened(value: str | None) -> str:
    if value is None:
        return "nothing"
    return value if len(value) <= _MAX_CHARACTERS else value[:_MAX_CHARACTERS] + "…"


def all_gather_texts(group: ProcessGroup, text: str) -> list[str]:
    """Return the texts of all workers in the order of their ranks. They must be ASCII; lengths may differ."""
    block = text.encode("ascii")
    longest = group.all_reduce_max(len(block))
    return [received.rstrip(b"\0").decode("ascii") for received in group.all_gather(block.ljust(longest, b"\0"))]


def _array_digest(array: np.ndarray) -> str:
    if array.dtype.hasobject:
        return _digest(repr(array.tolist()).encode())
    return _digest(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def _digest(content: bytes | memoryview) -> str:
    return hashlib.blake2b(content, digest_size=8).hexdigest()
