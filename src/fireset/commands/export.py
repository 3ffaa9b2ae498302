"""``fireset export``: a model file as an ONNX graph, for programs without fireset."""

import os
from pathlib import Path
from typing import Any

from fireset._util.errors import InputError
from fireset._util.files import atomic_path, check_writable
from fireset.commands.outputs import check_outputs_differ_from_inputs
from fireset.model import Model


def export_model(path: Path, out: Path) -> dict[str, Any]:
    """Write the graph of a model; return its inputs and outputs for the summary."""
    if out.suffix != ".onnx":
        raise InputError(f"the exported file must be named .onnx, got {out}; that is the one format there is")
    check_outputs_differ_from_inputs(out, path, flag="OUT")
    check_writable(out)
    model = Model.load(path)
    graph = model.estimator.to_onnx(target=model.target)
    with atomic_path(out) as temporary:
        temporary.write_bytes(graph.SerializeToString())
    return {
        "file": str(out),
        "bytes": os.path.getsize(out),
        "task": model.task,
        "target": model.target,
        "inputs": [value.name for value in graph.graph.input],
        "outputs": [value.name for value in graph.graph.output],
    }
