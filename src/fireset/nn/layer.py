"""``ShiftedReLU``: a very wide two-layer shifted-ReLU network as a ``torch.nn.Module``."""

from math import sqrt
from typing import Any

import numpy as np
import torch
from torch import nn

from fireset._util.errors import InputError
from fireset.engines.row_lists import RowLists
from fireset.network import ShiftedReLUNetwork
from fireset.nn.function import Call, FiredPairs

_DTYPES = {torch.float32: "float32", torch.float64: "float64"}


class ShiftedReLU(nn.Module):
    """f(x) = (κ/√m) σ_b(x Wᵀ) A with σ_b(z) = max(z − b, 0): m hidden neurons, of which few fire for a row.

    Forward and backward cost what fires, not m: exact, on the CPU. Everything else is PyTorch's: losses, optimizers,
    ``state_dict``, layers before and behind it. ``layer(x)`` takes any rows and looks at every neuron once, by a matrix
    product. For a fixed table ``layer.attach(X)`` and then ``layer(rows=index)`` remember for each row who may fire
    (``fireset.engines.row_lists``), and measure how far the optimizer has moved each neuron since.

    Parameters
    ----------
    in_features, width, out_features : int
        d, m, c.
    threshold : "paper" or float
        b; "paper" is √(0.4 ln m). The higher, the fewer fire.
    trained_outputs : bool
        Whether A is a parameter, too; else it stays as drawn, ±1.
    start : "paper" or "antisymmetric"
        "antisymmetric" draws neurons in pairs of opposite signs: f is 0 before training.
    output_scale : float
        κ.
    sparse : bool
        Whether ∂L/∂W is a sparse tensor with the rows of the neurons that fired, for ``torch.optim.SparseAdam``.
    seed : int
    dtype : torch.float32 or torch.float64

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
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
    ):
        super().__init__()
        if dtype not in _DTYPES:
            raise InputError(f"dtype must be torch.float32 or torch.float64, got {dtype}")
        network = ShiftedReLUNetwork.initialize(
            width,
            in_features,
            out_features,
            threshold=threshold,
            start=start,
            output_scale=output_scale,
            seed=seed,
            dtype=_DTYPES[dtype],
        )
        self._take(network, trained_outputs, sparse)

    def _take(self, network: ShiftedReLUNetwork, trained_outputs: bool, sparse: bool) -> None:
        self.weight = nn.Parameter(torch.from_numpy(network.weights))
        outputs = torch.from_numpy(network.signs)
        if trained_outputs:
            self.outputs = nn.Parameter(outputs)
        else:
            self.register_buffer("outputs", outputs)
        self.threshold, self.output_scale, self.sparse = network.threshold, network.output_scale, bool(sparse)
        self._attached: _Attached | None = None

    @classmethod
    def from_network(
        cls, network: ShiftedReLUNetwork, *, trained_outputs: bool = False, sparse: bool = False
    ) -> "ShiftedReLU":
        """A layer on the memory of a network: what trains one trains the other."""
        layer = cls.__new__(cls)
        nn.Module.__init__(layer)
        layer._take(network, trained_outputs, sparse)
        return layer

    def to_network(self) -> ShiftedReLUNetwork:
        """A network on the memory of the layer: for ``predict``, ``save``, ``fireset.train`` and the theory."""
        self._check_parameters()
        return ShiftedReLUNetwork(
            self.weight.detach().numpy(), self.outputs.detach().numpy(), self.threshold, self.output_scale
        )

    def attach(self, X: torch.Tensor) -> "ShiftedReLU":
        """Make rows of this table known by number; returns the layer. X must not change as long as it is attached.

        Lists are made when a row is first asked for. They take 2 bytes for each pair that may fire.
        """
        self._check_rows(X, "X")
        self._attached = _Attached(X.detach())
        return self

    def release(self) -> "ShiftedReLU":
        """Forget the attached table and its lists; returns the layer."""
        self._attached = None
        return self

    def forward(self, x: torch.Tensor | None = None, *, rows: Any = None) -> torch.Tensor:
        """f of rows x, (…, d), or of rows of the attached table by number; (…, c)."""
        self._check_parameters()
        if (x is None) == (rows is None):
            raise InputError("give either x, or rows of the attached table")
        width, features = self.weight.shape
        call = Call(self.threshold, sqrt(width) / self.output_scale, None, None, self.sparse)
        if x is not None:
            self._check_rows(x, "x")
            flat = FiredPairs.apply(self.weight, self.outputs, x.reshape(-1, features).contiguous(), call)
            return flat.reshape(*x.shape[:-1], self.outputs.shape[1])
        if self._attached is None:
            raise InputError("rows are numbers of an attached table; call attach(X) first, or give x")
        index = _index(rows, len(self._attached.X))
        lists = self._attached.lists_for(index, self.weight.dtype)
        flat = FiredPairs.apply(self.weight, self.outputs, None, call._replace(lists=lists, rows=index.reshape(-1)))
        return flat.reshape(*index.shape, self.outputs.shape[1])

    def extra_repr(self) -> str:
        m, d = self.weight.shape
        trained = ", trained_outputs=True" if isinstance(self.outputs, nn.Parameter) else ""
        attached = f", {len(self._attached.X):,} rows attached" if self._attached else ""
        return f"{d}, {m}, {self.outputs.shape[1]}, threshold={self.threshold:.4g}{trained}{attached}"

    def get_extra_state(self) -> dict[str, float]:
        return {"threshold": self.threshold, "output_scale": self.output_scale}

    def set_extra_state(self, state: dict[str, float]) -> None:
        self.threshold, self.output_scale = float(state["threshold"]), float(state["output_scale"])

    def _check_parameters(self) -> None:
        for name, tensor in (("weight", self.weight), ("outputs", self.outputs)):
            if tensor.device.type != "cpu":
                raise InputError(f"{name} is on {tensor.device}; this layer runs on the CPU: layer.to('cpu')")
            if tensor.dtype not in _DTYPES or tensor.dtype != self.weight.dtype:
                raise InputError(f"{name} is {tensor.dtype}; use layer.float() or layer.double()")
            if not tensor.is_contiguous():
                raise InputError(f"{name} must be contiguous; assign {name}.contiguous()")

    def _check_rows(self, x: Any, name: str) -> None:
        if not isinstance(x, torch.Tensor):
            raise InputError(f"{name} must be a tensor, got {type(x).__name__}; torch.as_tensor makes one")
        if x.device.type != "cpu":
            raise InputError(f"{name} is on {x.device}; this layer runs on the CPU: {name}.cpu()")
        features = self.weight.shape[1]
        if x.ndim < 1 or x.shape[-1] != features:
            raise InputError(f"{name} must have {features} columns, got shape {tuple(x.shape)}")
        if name == "X" and x.ndim != 2:
            raise InputError(f"X must have shape (n, {features}), got {tuple(x.shape)}")
        if x.dtype != self.weight.dtype:
            raise InputError(
                f"{name} is {x.dtype} and the layer {self.weight.dtype}; use {name}.to(layer.weight.dtype)"
            )
        if not bool(torch.isfinite(x).all()):
            raise InputError(f"{name} must be finite; what came before the layer has gone wrong, or values are missing")


class _Attached:
    """A table whose rows are known by number."""

    def __init__(self, X: torch.Tensor):
        self.X = X
        self._lists: RowLists | None = None
        self._dtype = X.dtype

    def lists_for(self, index: np.ndarray, dtype: torch.dtype) -> RowLists:
        """The lists, in the precision of the weights; what is asked of them must be as it was."""
        if self._lists is None or dtype != self._dtype:
            self._lists, self._dtype = RowLists(self.X.to(dtype).contiguous().numpy()), dtype
        used = self.X.to(dtype).numpy()[index.reshape(-1)]
        if not np.array_equal(used, self._lists.samples[index.reshape(-1), : used.shape[1]]):
            raise InputError("the attached X has changed; call attach(X) again")
        return self._lists

    def __getstate__(self) -> dict[str, Any]:
        return {"X": self.X, "_lists": None, "_dtype": self._dtype}  # lists are made again where they are needed


def _index(rows: Any, n: int) -> np.ndarray:
    """Numbers of rows, of any shape, int64."""
    index = rows.detach().cpu().numpy() if isinstance(rows, torch.Tensor) else np.asarray(rows)
    if isinstance(rows, slice):
        index = np.arange(n)[rows]
    elif index.dtype == bool:
        if index.shape != (n,):
            raise InputError(f"a mask of rows must have shape ({n},), got {index.shape}")
        index = np.flatnonzero(index)
    elif index.size and not np.issubdtype(index.dtype, np.integer):
        raise InputError(f"rows must be whole numbers, got {index.dtype}")
    index = index.astype(np.int64)
    if index.size and not (0 <= index.min() and index.max() < n):
        bad = index[(index < 0) | (index >= n)].flat[0]
        raise InputError(f"rows must be from 0 to {n - 1}, got {bad}")
    return index
