"""How wide a network for a table, where nobody says.

What a network of finite width predicts differs from the kernel of infinite width by noise, and the noise depends on how
many neurons fire for a row, hardly on the threshold or on the width as such (docs/accuracy.md has the figures). At a
threshold of 1.5 seven neurons of a hundred fire: a third of the weights that the paper's threshold would need for as
many.
"""

from fireset._util.gaussian import upper_tail
from fireset._util.system_memory import available_bytes

THRESHOLD = 1.5
_WIDTH = 20_000
_PARAMETERS_PER_TARGET = 2.0  # neurons come in pairs, of which one would do
_MAX_PAIRS = 1e8  # that fire: beyond, a product takes seconds
_BYTES_PER_PAIR = 24  # candidate, reference and fired sample, with places to spare
_BYTES_PER_WEIGHT = 24  # in float32, with the copies that training has of all weights
_SHARE_OF_MEMORY = 0.25
_LEAST, _MOST = 2_000, 200_000


def choose_width(rows: int, columns: int, outputs: int, threshold: float = THRESHOLD) -> int:
    """An even number of neurons: 20,000, or more where that is fewer weights than numbers to be learned.

    Many rows have fewer, so that the pairs that fire stay below a hundred million, and within a quarter of the memory.
    So have very many columns, as sparse tables do, so that the weights stay within another.
    """
    wanted = max(_WIDTH, _PARAMETERS_PER_TARGET * rows * outputs / columns)
    memory = _SHARE_OF_MEMORY * available_bytes()
    pairs = min(_MAX_PAIRS, memory / _BYTES_PER_PAIR)
    most = min(_MOST, pairs / (rows * upper_tail(threshold)), memory / (_BYTES_PER_WEIGHT * columns))
    return 2 * round(max(_LEAST, min(wanted, most)) / 2)
