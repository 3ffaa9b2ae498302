"""The wide layer inside PyTorch (extra ``torch``): ``fireset.nn.ShiftedReLU``, on fired pairs only, exact, on the CPU."""

from fireset.nn.layer import ShiftedReLU

__all__ = ["ShiftedReLU"]
