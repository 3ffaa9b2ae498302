"""``fireset.nn.ShiftedReLU``: an exact, very wide layer for PyTorch on the CPU (extra ``torch``)."""

try:
    from fireset.nn.layer import ShiftedReLU
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError(
        "fireset.nn needs PyTorch, which is not installed; run pip install 'fireset[torch]'", name="torch"
    ) from error

__all__ = ["ShiftedReLU"]
