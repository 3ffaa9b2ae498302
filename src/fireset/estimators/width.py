"""Width of the network: the default, and the least one that the paper's theorem covers (``width="theory"``).

Predictions of a network of finite width differ from those of the infinitely wide network by noise. The noise depends on
the number of active neurons per row, and hardly on threshold or width themselves (figures in docs/accuracy.md). At a
threshold of 1.5, 7 % of the neurons are active. The paper's threshold needs three times as many weights for the same
number of active neurons.
"""

from typing import Any

import numpy as np

from fireset._util.errors import InputError
from fireset._util.gaussian import upper_tail
from fireset._util.system_memory import available_bytes
from fireset.initialization import copies_for_outputs
from fireset.training.losses import Loss, get_loss

THRESHOLD = 1.5
PAPER_WIDTH = 10_000
THRESHOLD_FOR_CENTRES = 1.0  # 16 % are active: less noise at the same cost, since "nystrom" computes all pairs
_WIDTH = 20_000
_WIDTH_FOR_FEW_ROWS = 40_000  # up to +0.01 on smooth tables, for 15 to 40 % of the fit time
_ACTIVE_PAIRS_FOR_FEW_ROWS = 6.7e6  # of 5,000 rows at 20,000 neurons
_WEIGHTS_PER_TARGET = 2.0  # the two neurons of a pair start with the same weights
_MAX_ACTIVE_PAIRS = 1e8  # beyond, a tangent product takes seconds
_BYTES_PER_ACTIVE_PAIR = 24  # candidate, reference value, active row, and spare capacity
_BYTES_PER_WEIGHT = 24  # float32, with the copies that training keeps
_SHARE_OF_MEMORY = 0.25
_MIN_DIFFERENT_NEURONS = 2500  # for "nystrom" with several outputs
_MIN_WIDTH, _MAX_WIDTH = 2_000, 200_000


def choose_width(rows: int, columns: int, outputs: int, threshold: float = THRESHOLD) -> int:
    """Return an even number of neurons: 20,000, or more for few rows or fewer than two weights per target.

    This is the width for "gauss-newton". It is up to 40,000 while there are no more active pairs than those of 5,000
    rows with 20,000 neurons. It is lower for many rows, so that there are at most 10⁸ active pairs and a
    quarter of the memory holds them. It is lower for very many columns, so that the weights fit into another quarter.
    """
    for_few_rows = min(_WIDTH_FOR_FEW_ROWS, _ACTIVE_PAIRS_FOR_FEW_ROWS / (rows * upper_tail(threshold)))
    wanted = max(_WIDTH, for_few_rows, _WEIGHTS_PER_TARGET * rows * outputs / columns)
    memory = _SHARE_OF_MEMORY * available_bytes()
    pairs = min(_MAX_ACTIVE_PAIRS, memory / _BYTES_PER_ACTIVE_PAIR)
    limit = min(_MAX_WIDTH, pairs / (rows * upper_tail(threshold)), memory / (_BYTES_PER_WEIGHT * columns))
    return 2 * round(max(_MIN_WIDTH, min(wanted, limit)) / 2)


def check_theory_settings(start: str, output_scale: float, loss: str | Loss, outputs: int, X: Any) -> None:
    """Check that the theorem is about a network with these settings, for ``width="theory"``."""
    if start != "paper":
        raise InputError(f"start must be 'paper' with width='theory', got {start!r}")
    if output_scale != 1:
        raise InputError(f"output_scale must be 1 with width='theory', got {output_scale!r}")
    if not get_loss(loss).is_squared_error:
        raise InputError(f"loss must be 'squared_error' with width='theory', got {loss!r}")
    if outputs != 1:
        raise InputError(f"width='theory' is for one output, got {outputs}; give a number or 'auto'")
    if not isinstance(X, np.ndarray):
        raise InputError("width='theory' needs dense rows; give a number or 'auto'")


def theory_width(rows: np.ndarray, targets: np.ndarray, threshold: float | str) -> int:
    """Return the least width at which the convergence lemma covers these rows of norm 1 and targets, (n, 1).

    If its weights do not fit into a quarter of the memory, raise an InputError with the width and with what would make
    the largest possible width sufficient.
    """
    from fireset.theory.required_width import least_width, shortfall

    found = least_width(rows, targets, threshold=threshold)
    largest = int(_SHARE_OF_MEMORY * available_bytes() / (_BYTES_PER_WEIGHT * rows.shape[1]))
    if found.width > largest:
        raise InputError(
            f"width='theory' needs {found.width:.3g} neurons for these {found.rows:,} rows (λ = {found.smallest:.3g} "
            f"at b = {found.threshold:.3g}), more than the {largest:,} that fit into memory; "
            f"{shortfall(rows, targets, largest, threshold=threshold)}. Give a number or 'auto'"
        )
    return int(found.width)


def choose_width_for_centres(columns: int, outputs: int) -> int:
    """Return a number of neurons for "nystrom", whose memory does not depend on the active pairs.

    The width is 20,000 for any number of rows, or 2,500 different neurons with a copy for each output if that is more.
    It is lower for very many columns, so that the weights fit into a quarter of the memory.
    """
    copies = copies_for_outputs(outputs)
    limit = _SHARE_OF_MEMORY * available_bytes() / (_BYTES_PER_WEIGHT * columns)
    width = max(_MIN_WIDTH, min(max(_WIDTH, _MIN_DIFFERENT_NEURONS * copies), limit))
    return copies * round(width / copies)
