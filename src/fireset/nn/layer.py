"""``ShiftedReLU``: a very wide two-layer shifted-ReLU network as a ``torch.nn.Module``."""

from math import sqrt
from typing import Any

import numpy as np
import torch
from torch import nn

from fireset._util.errors import InputError
from fireset.network import ShiftedReLUNetwork
from fireset.nn.deferred import deferred_gradient
from fireset.nn.function import ActivePairs, AttachedTable, Call

_DTYPES = {torch.float32: "float32", torch.float64: "float64"}
_AUTOCAST_DTYPES = (torch.bfloat16, torch.float16)


class ShiftedReLU(nn.Module):
    """f(x) = (κ/√m) σ_b(x Wᵀ) A with σ_b(z) = max(z − b, 0): m hidden neurons, of which few are active for a row.

    The layer is exact, runs on the CPU, and supports second derivatives. It works with the losses, optimizers,
    ``state_dict`` and other layers of PyTorch. ``layer(x)`` takes any rows, computes every pre-activation once in a
    matrix product, and everything else over the active pairs only. For a fixed table call ``layer.attach(X)`` and then
    ``layer(rows=index)``: the layer keeps a candidate list for each row (``fireset.engines.row_lists``), and a pass
    costs the candidates. ``layer.to_dense()`` returns the function as plain modules.

    Several threads may call a layer at once, attached or not, if none of them changes its parameters.

    Parameters
    ----------
    in_features, width, out_features : int
        d, m, c.
    threshold : "paper" or float
        b; "paper" is √(0.4 ln m). The larger b, the fewer pairs are active.
    trained_outputs : bool
        Whether A is a parameter; otherwise a buffer of ±1.
    start : "paper", "antisymmetric" or "orthogonal"
        "antisymmetric" draws pairs of neurons with opposite output weights, so that f is 0 before training.
        "orthogonal" draws copies of each neuron, so that the gradients of different outputs are orthogonal as well.
    output_scale : float
        κ.
    sparse : bool
        Whether ∂L/∂W is a sparse tensor with the rows of the active neurons, for ``torch.optim.SparseAdam``.
    seed : int, optional
        Seed of the initial weights. By default they come from PyTorch's generator (``torch.manual_seed``).
    device : "cpu", optional
        Must be the CPU; use ``to_dense()`` for other devices.
    dtype : torch.float32 or torch.float64, optional
        Default: ``torch.get_default_dtype()``.

    Attributes
    ----------
    weight : Parameter, (m, d)
    outputs : Parameter or buffer, (m, c)

    Examples
    --------
    >>> import torch
    >>> from fireset.nn import ShiftedReLU
    >>> layer = ShiftedReLU(8, 1000, 2)
    >>> x = torch.nn.functional.normalize(torch.randn(5, 8))
    >>> layer(x).shape
    torch.Size([5, 2])
    >>> layer.attach(x)(rows=[0, 3]).shape
    torch.Size([2, 2])
    """

    weight: torch.Tensor
    outputs: torch.Tensor

    def __init__(
        self,
        in_features: int,
        width: int,
        out_features: int = 1,
        threshold: float | str = "paper",
        *,
        trained_outputs: bool = False,
        start: str = "paper",
        output_scale: float = 1.0,
        sparse: bool = False,
        seed: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        dtype = torch.get_default_dtype() if dtype is None else dtype
        if dtype not in _DTYPES:
            raise InputError(f"dtype must be torch.float32 or torch.float64, got {dtype}")
        _check_device("device", "cpu" if device is None else device)
        network = ShiftedReLUNetwork.initialize(
            width,
            in_features,
            out_features,
            threshold=threshold,
            start=start,
            output_scale=output_scale,
            seed=_drawn_seed() if seed is None else seed,
            dtype=_DTYPES[dtype],
        )
        self._use_network(network, trained_outputs, sparse, start)

    def _use_network(self, network: ShiftedReLUNetwork, trained_outputs: bool, sparse: bool, start: str) -> None:
        self.weight = nn.Parameter(torch.from_numpy(network.weights))
        outputs = torch.from_numpy(network.output_weights)
        if trained_outputs:
            self.outputs = nn.Parameter(outputs)
        else:
            self.register_buffer("outputs", outputs)
        self.threshold, self.output_scale, self.sparse = network.threshold, network.output_scale, bool(sparse)
        self._start = start
        self._attached: AttachedTable | None = None

    def reset_parameters(self, seed: int | None = None) -> None:
        """Draw weights and outputs again, in place; by default with PyTorch's generator."""
        self._check_parameters()
        width, features = self.weight.shape
        network = ShiftedReLUNetwork.initialize(
            width,
            features,
            self.outputs.shape[1],
            threshold=self.threshold,
            start=self._start,
            seed=_drawn_seed() if seed is None else seed,
            dtype=_DTYPES[self.weight.dtype],
        )
        with torch.no_grad():
            self.weight.copy_(torch.from_numpy(network.weights))
            self.outputs.copy_(torch.from_numpy(network.output_weights))

    @classmethod
    def from_network(
        cls, network: ShiftedReLUNetwork, *, trained_outputs: bool = False, sparse: bool = False
    ) -> "ShiftedReLU":
        """Create a layer that shares the memory of a network: training one changes the other."""
        layer = cls.__new__(cls)
        nn.Module.__init__(layer)
        layer._use_network(network, trained_outputs, sparse, "paper")
        return layer

    def to_network(self) -> ShiftedReLUNetwork:
        """Return a network that shares the memory of the layer, for ``predict``, ``save`` or ``fireset.train``."""
        self._check_parameters()
        return ShiftedReLUNetwork(
            self.weight.detach().numpy(), self.outputs.detach().numpy(), self.threshold, self.output_scale
        )

    def to_dense(self) -> nn.Sequential:
        """Return the function as ``nn.Sequential(nn.Linear, nn.ReLU, nn.Linear)`` with copies of the parameters.

        Use it for other devices, ``torch.compile``, ``torch.export`` and ONNX, autocast, ``torch.func``, and
        derivatives of any order. It computes and stores all n × m pre-activations. The bias of the first module is −b
        and not trained; the weight of the second one is (κ/√m) Aᵀ, trained if A is.
        """
        m, d = self.weight.shape
        dtype = self.weight.dtype
        # On "meta" no initial weights are drawn.
        hidden = nn.Linear(d, m, dtype=dtype, device="meta").to_empty(device="cpu")
        out = nn.Linear(m, self.outputs.shape[1], bias=False, dtype=dtype, device="meta").to_empty(device="cpu")
        with torch.no_grad():
            hidden.weight.copy_(self.weight)
            hidden.bias.fill_(-self.threshold)
            out.weight.copy_(self.outputs.T * (self.output_scale / sqrt(m)))
        hidden.weight.requires_grad_(self.weight.requires_grad)
        hidden.bias.requires_grad_(False)
        out.weight.requires_grad_(self.outputs.requires_grad)
        return nn.Sequential(hidden, nn.ReLU(), out).train(self.training)

    def attach(self, X: torch.Tensor) -> "ShiftedReLU":
        """Attach a table whose rows ``forward`` takes by number; return the layer. X must not change afterwards.

        The candidate list of a row is made when the row is first used. Lists take 2 bytes per candidate.
        """
        self._check_rows(X, "X")
        self._attached = AttachedTable(X.detach())
        return self

    def release(self) -> "ShiftedReLU":
        """Detach the table and discard its lists; return the layer."""
        self._attached = None
        return self

    def forward(self, x: torch.Tensor | None = None, *, rows: Any = None) -> torch.Tensor:
        """Return f of rows x, (…, d), or of rows of the attached table given by number; (…, c).

        Under autocast x may have a lower precision than the layer; it is converted to that of the layer.
        """
        if torch.compiler.is_compiling() and not torch.compiler.is_dynamo_compiling():  # torch.export
            raise InputError("ShiftedReLU cannot be exported; export layer.to_dense() instead")
        if torch.compiler.is_compiling():  # kernels cannot be traced, so run between two graphs
            return torch.compiler.disable(self._forward)(x, rows)  # pyright: ignore[reportCallIssue]
        return self._forward(x, rows)

    def _forward(self, x: torch.Tensor | None, rows: Any) -> torch.Tensor:
        self._check_parameters()
        if (x is None) == (rows is None):
            raise InputError("give either x or rows, and not both")
        width, features = self.weight.shape
        deferred = deferred_gradient(self.weight)
        call = Call(self.threshold, sqrt(width) / self.output_scale, None, None, self.sparse, deferred)
        if x is not None:
            if isinstance(x, torch.Tensor) and x.dtype in _AUTOCAST_DTYPES and torch.is_autocast_enabled("cpu"):
                x = x.to(self.weight.dtype)
            self._check_rows(x, "x")
            flat = ActivePairs.apply(self.weight, self.outputs, x.reshape(-1, features).contiguous(), call)
            return flat.reshape(*x.shape[:-1], self.outputs.shape[1])
        if self._attached is None:
            raise InputError("rows needs an attached table; call attach(X) first, or give x")
        table = self._attached
        index = _index(rows, len(table))
        flat = ActivePairs.apply(self.weight, self.outputs, None, call._replace(table=table, rows=index.reshape(-1)))
        return flat.reshape(*index.shape, self.outputs.shape[1])

    def extra_repr(self) -> str:
        m, d = self.weight.shape
        trained = ", trained_outputs=True" if isinstance(self.outputs, nn.Parameter) else ""
        attached = f", {len(self._attached):,} rows attached" if self._attached else ""
        return f"{d}, {m}, {self.outputs.shape[1]}, threshold={self.threshold:.4g}{trained}{attached}"

    def get_extra_state(self) -> dict[str, float]:
        return {"threshold": self.threshold, "output_scale": self.output_scale}

    def set_extra_state(self, state: dict[str, float]) -> None:
        self.threshold, self.output_scale = float(state["threshold"]), float(state["output_scale"])

    def _apply(self, fn, recurse=True):
        _check_device("device", fn(self.weight.detach()[:0]).device)  # before any parameter is moved
        return super()._apply(fn, recurse)

    def _check_parameters(self) -> None:
        for name, tensor in (("weight", self.weight), ("outputs", self.outputs)):
            _check_device(f"the device of {name}", tensor.device)
            if tensor.dtype not in _DTYPES or tensor.dtype != self.weight.dtype:
                raise InputError(
                    f"{name} must be float32 or float64, got {tensor.dtype}; use layer.float() or layer.double()"
                )
            if not tensor.is_contiguous():
                raise InputError(f"{name} must be contiguous; assign {name}.contiguous()")

    def _check_rows(self, x: Any, name: str) -> None:
        if not isinstance(x, torch.Tensor):
            raise InputError(f"{name} must be a tensor, got {type(x).__name__}; use torch.as_tensor")
        _check_device(f"the device of {name}", x.device)
        features = self.weight.shape[1]
        if x.ndim < 1 or x.shape[-1] != features:
            raise InputError(f"{name} must have {features} columns, got shape {tuple(x.shape)}")
        if name == "X" and x.ndim != 2:
            raise InputError(f"X must have shape (n, {features}), got {tuple(x.shape)}")
        if x.dtype != self.weight.dtype:
            raise InputError(f"{name} must be {self.weight.dtype}, got {x.dtype}; use {name}.to(layer.weight.dtype)")
        if not bool(torch.isfinite(x).all()):
            raise InputError(f"{name} must be finite; check the layers before this one, and missing values")


def _drawn_seed() -> int:
    """Draw a seed from PyTorch's default generator."""
    return int(torch.randint(2**63 - 1, (), device="cpu"))


def _check_device(name: str, device: torch.device | str) -> None:
    if torch.device(device).type != "cpu":
        raise InputError(
            f"{name} must be 'cpu', got '{device}'; layer.to_dense() returns plain modules that run on other devices"
        )


def _index(rows: Any, n: int) -> np.ndarray:
    """Return row numbers of any shape as int64."""
    index = rows.detach().cpu().numpy() if isinstance(rows, torch.Tensor) else np.asarray(rows)
    if isinstance(rows, slice):
        index = np.arange(n)[rows]
    elif index.dtype == bool:
        if index.shape != (n,):
            raise InputError(f"rows must have shape ({n},) if it is a mask, got {index.shape}")
        index = np.flatnonzero(index)
    elif index.size and not np.issubdtype(index.dtype, np.integer):
        raise InputError(f"rows must be whole numbers, got {index.dtype}")
    index = index.astype(np.int64)
    if index.size and not (0 <= index.min() and index.max() < n):
        bad = index[(index < 0) | (index >= n)].flat[0]
        raise InputError(f"rows must be from 0 to {n - 1}, got {bad}")
    return index
