"""The smaller and the larger of two numbers, without the functions that numba would compile for ``min`` and ``max``.

Each of these functions takes 15 ms, for every type, in every kernel that is compiled.
"""

from typing import Any

from numba import types

from fireset.kernels.masks import intrinsic


def _extremum(operation: str) -> Any:
    """Create ``smaller`` with the operation "<", and ``larger`` with ">"."""

    @intrinsic
    def extremum(typing_context, a, b):
        number = typing_context.unify_types(types.unliteral(a), types.unliteral(b))
        if not isinstance(number, types.Integer | types.Float):
            return None

        def generate(context, builder, signature, arguments):
            one, other = (
                context.cast(builder, value, kind, number)
                for value, kind in zip(arguments, signature.args, strict=True)
            )
            if isinstance(number, types.Float):
                is_chosen = builder.fcmp_ordered(operation, other, one)
            elif number in types.signed_domain:
                is_chosen = builder.icmp_signed(operation, other, one)
            else:
                is_chosen = builder.icmp_unsigned(operation, other, one)
            return builder.select(is_chosen, other, one)

        return number(a, b), generate

    return extremum


# As ``min(a, b)`` and ``max(a, b)`` in Python: a if the numbers are equal or not comparable.
smaller = _extremum("<")
larger = _extremum(">")
