"""The wide layer inside PyTorch (extra ``torch``): ``fireset.nn.ShiftedReLU``, exact, on fired pairs, on the CPU."""

try:
    from fireset.nn.layer import ShiftedReLU
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError(
        "fireset.nn needs PyTorch, which is missing; install it with pip install 'fireset[torch]'", name="torch"
    ) from error

__all__ = ["ShiftedReLU"]
