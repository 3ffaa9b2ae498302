"""An ONNX graph under construction, with unique names of values and a limit on the size of constants."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fireset._util.errors import InputError

if TYPE_CHECKING:
    import onnx

# Versions of 2022, which most runtimes in use support.
_OPSET, _ML_OPSET, _IR_VERSION = 17, 3, 8
_ML_DOMAIN = "ai.onnx.ml"
MAX_CONSTANT_BYTES = 2_000_000_000  # protobuf, the format of the file, is limited to 2**31


def onnx_library() -> Any:
    """Import the optional package onnx."""
    try:
        import onnx
        import onnx.helper
        import onnx.numpy_helper
    except ImportError as error:
        raise InputError(
            f"export needs onnx, and {error.name} is missing; install it with pip install 'fireset[onnx]'"
        ) from error
    return onnx


class Graph:
    """Nodes, constants, inputs and outputs. Methods that add a value return its name, made unique by a number."""

    def __init__(self) -> None:
        self._onnx = onnx_library()
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._names: set[str] = set()
        self._bytes = 0

    def input(self, name: str, dtype: type, columns: int) -> str:
        """Add an input of shape (rows, columns). Add inputs first, so that their names need no number."""
        name = self._unused(name or "unnamed")  # in ONNX an empty name means an omitted value
        self._inputs.append(self._value(name, dtype, ["rows", columns]))
        return name

    def constant(self, name: str, value: Any, dtype: Any = np.float64) -> str:
        """Add a number or an array; ``object`` is the dtype of text."""
        array = np.asarray(value, dtype)
        self._bytes += array.nbytes
        if self._bytes > MAX_CONSTANT_BYTES:
            raise InputError(
                f"the network takes {self._bytes / 1e9:.1f} GB, and an ONNX file holds at most "
                f"{MAX_CONSTANT_BYTES / 1e9:.0f} GB; "
                "predict with fireset itself, or train with a smaller width"
            )
        name = self._unused(name)
        self._constants.append(self._onnx.numpy_helper.from_array(array, name))
        return name

    def add(self, operation: str, *inputs: str, name: str, domain: str = "", **attributes: Any) -> str:
        """Add a node with one output."""
        name = self._unused(name)
        node = self._onnx.helper.make_node(operation, list(inputs), [name], name=name, domain=domain, **attributes)
        self._nodes.append(node)
        return name

    def cast(self, value: str, dtype: Any, name: str) -> str:
        """Convert the type of a value."""
        return self.add("Cast", value, name=name, to=self._type(dtype))

    def joined(self, values: Sequence[str], name: str) -> str:
        """Concatenate values along the columns."""
        return values[0] if len(values) == 1 else self.add("Concat", *values, name=name, axis=1)

    def columns(self, value: str, numbers: Sequence[int] | np.ndarray, name: str) -> str:
        """Select columns, in this order."""
        return self.add("Gather", value, self.constant(f"{name}_numbers", numbers, np.int64), name=name, axis=1)

    def category_codes(self, text: str, codes: Mapping[str, int], *, missing: int, unknown: int, name: str) -> str:
        """Map texts to int64 codes; "" is a missing cell unless it has a code.

        A whole number may also be written with ".0", and true and false with a capital, as other programs do.
        """
        variants = {_variant(category): code for category, code in codes.items()}
        known = {"": missing} | {text: code for text, code in variants.items() if text} | dict(codes)
        return self.add(
            "LabelEncoder",
            text,
            name=name,
            domain=_ML_DOMAIN,
            keys_strings=list(known),
            values_int64s=list(known.values()),
            default_int64=unknown,
        )

    def row_sums(self, value: str, name: str) -> str:
        """Add up each row, (rows, 1)."""
        return self.add("ReduceSum", value, self.constant(f"{name}_axis", [1], np.int64), name=name, keepdims=1)

    def flat(self, value: str, name: str) -> str:
        """Reshape (rows, 1) to (rows,)."""
        return self.add("Squeeze", value, self.constant(f"{name}_axis", [1], np.int64), name=name)

    def sorted_rows(self, value: str, columns: int, name: str) -> str:
        """Sort each row in ascending order."""
        count, places = self.constant(f"{name}_count", [columns], np.int64), self._unused(f"{name}_places")
        node = self._onnx.helper.make_node("TopK", [value, count], [name, places], name=name, axis=1, largest=0)
        self._names.add(name)
        self._nodes.append(node)
        return name

    def output(self, value: str, name: str, dtype: Any, columns: int | None) -> None:
        """Add an output of shape (rows, columns), or (rows,). If the name is in use, "_" is appended to it."""
        while name in self._names:
            name += "_"
        self.add("Identity", value, name=name)
        self._outputs.append(self._value(name, dtype, ["rows"] if columns is None else ["rows", columns]))

    def model(self, description: str, metadata: dict[str, str]) -> onnx.ModelProto:
        """Return the checked model."""
        from fireset import __version__

        helper = self._onnx.helper
        graph = helper.make_graph(self._nodes, "fireset", self._inputs, self._outputs, self._constants)
        opsets = [helper.make_opsetid("", _OPSET)]
        if any(node.domain == _ML_DOMAIN for node in self._nodes):
            opsets.append(helper.make_opsetid(_ML_DOMAIN, _ML_OPSET))
        made_by = {"producer_name": "fireset", "producer_version": __version__, "doc_string": description}
        model = helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION, **made_by)
        helper.set_model_props(model, metadata)
        self._onnx.checker.check_model(model)
        return model

    def _value(self, name: str, dtype: Any, shape: list[int | str]) -> onnx.ValueInfoProto:
        return self._onnx.helper.make_tensor_value_info(name, self._type(dtype), shape)

    def _type(self, dtype: Any) -> int:
        if dtype is object:
            return self._onnx.TensorProto.STRING
        return self._onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))

    def _unused(self, name: str) -> str:
        number, wanted = 1, name
        while name in self._names:
            number += 1
            name = f"{wanted}_{number}"
        self._names.add(name)
        return name


def _variant(category: str) -> str:
    """Return another text that programs write for a category that is a whole number or a boolean, else ""."""
    if re.fullmatch(r"-?\d+", category):
        return f"{category}.0"
    return category.capitalize() if category in ("true", "false") else ""
