"""An ONNX graph as it is being built: values get names of their own, constants are counted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fireset._util.errors import InputError

if TYPE_CHECKING:
    import onnx

# What most programs in use read: those of 2022 and later.
OPSET, ML_OPSET, IR_VERSION = 17, 3, 8
ML = "ai.onnx.ml"
LARGEST = 2_000_000_000  # bytes of constants; protobuf, which the format is made of, ends at 2**31


def onnx_library() -> Any:
    """The package onnx, which is an optional dependency."""
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
    """Nodes, constants, inputs and outputs. Methods that add something give the name of its value."""

    def __init__(self) -> None:
        self._onnx = onnx_library()
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._names: set[str] = set()
        self._bytes = 0

    def input(self, name: str, dtype: type, columns: int) -> str:
        """Rows of so many columns that whoever runs the graph gives; call it before all else to have the name."""
        name = self._unused(name or "unnamed")  # ONNX takes a value without a name for one that is left out
        self._inputs.append(self._value(name, dtype, ["rows", columns]))
        return name

    def constant(self, name: str, value: Any, dtype: Any = np.float64) -> str:
        """A number or an array; ``object`` is the type of texts."""
        array = np.asarray(value, dtype)
        self._bytes += array.nbytes
        if self._bytes > LARGEST:
            raise InputError(
                f"the network takes {self._bytes / 1e9:.1f} GB, and an ONNX file holds {LARGEST / 1e9:.0f} GB at most; "
                "predict with fireset itself, or train with a smaller width"
            )
        name = self._unused(name)
        self._constants.append(self._onnx.numpy_helper.from_array(array, name))
        return name

    def add(self, operation: str, *inputs: str, name: str, domain: str = "", **attributes: Any) -> str:
        """One node with one output."""
        name = self._unused(name)
        node = self._onnx.helper.make_node(operation, list(inputs), [name], name=name, domain=domain, **attributes)
        self._nodes.append(node)
        return name

    def cast(self, value: str, dtype: Any, name: str) -> str:
        return self.add("Cast", value, name=name, to=self._type(dtype))

    def joined(self, values: Sequence[str], name: str) -> str:
        """Columns side by side."""
        return values[0] if len(values) == 1 else self.add("Concat", *values, name=name, axis=1)

    def columns(self, value: str, numbers: Sequence[int] | np.ndarray, name: str) -> str:
        """Some of the columns, in this order."""
        return self.add("Gather", value, self.constant(f"{name}_numbers", numbers, np.int64), name=name, axis=1)

    def row_sums(self, value: str, name: str) -> str:
        """(rows, 1)."""
        return self.add("ReduceSum", value, self.constant(f"{name}_axis", [1], np.int64), name=name, keepdims=1)

    def flat(self, value: str, name: str) -> str:
        """(rows, 1) as (rows,)."""
        return self.add("Squeeze", value, self.constant(f"{name}_axis", [1], np.int64), name=name)

    def sorted_rows(self, value: str, columns: int, name: str) -> str:
        """Each row in ascending order."""
        count, places = self.constant(f"{name}_count", [columns], np.int64), self._unused(f"{name}_places")
        node = self._onnx.helper.make_node("TopK", [value, count], [name, places], name=name, axis=1, largest=0)
        self._names.add(name)
        self._nodes.append(node)
        return name

    def output(self, value: str, name: str, dtype: Any, columns: int | None) -> None:
        """Give a value to whoever runs the graph: (rows, columns), or (rows,). A column of that name goes before."""
        while name in self._names:
            name += "_"
        self.add("Identity", value, name=name)
        self._outputs.append(self._value(name, dtype, ["rows"] if columns is None else ["rows", columns]))

    def model(self, description: str, metadata: dict[str, str]) -> onnx.ModelProto:
        """All of it, checked."""
        from fireset import __version__

        helper = self._onnx.helper
        graph = helper.make_graph(self._nodes, "fireset", self._inputs, self._outputs, self._constants)
        opsets = [helper.make_opsetid("", OPSET)]
        if any(node.domain == ML for node in self._nodes):
            opsets.append(helper.make_opsetid(ML, ML_OPSET))
        made_by = {"producer_name": "fireset", "producer_version": __version__, "doc_string": description}
        model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, **made_by)
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
