"""The wide layer inside PyTorch (extra ``torch``): ``fireset.nn.ShiftedReLU``, exact, on fired pairs, on the CPU."""

from fireset.nn.layer import ShiftedReLU

__all__ = ["ShiftedReLU"]
