"""Sums of float64 kept in two floats, for what is added here and taken back there.

A prefix sum carries the rounding of its largest term on past the place where that term is taken back: 10⁻¹⁶ of it, and
that may be more than all that is left. An addition in two floats keeps what it rounds off, exactly (Knuth 1969, The Art
of Computer Programming, volume 2, section 4.2.2, theorem B), and adds it up in the second one (Neumaier 1974). What is
carried on then is 10⁻³² of the largest term.
"""

from fireset.kernels.compiling import strict_inlined


@strict_inlined
def add_to(high, low, term):
    """(``high``, ``low``) with ``term`` added: the total is the sum of the two, and ``high`` alone is close to it."""
    total = high + term
    taken = total - high
    return total, low + ((high - (total - taken)) + (term - taken))
