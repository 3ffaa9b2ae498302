"""Reading off a block of inner products which of them lie above a threshold."""

from fireset.kernels.compiling import vector


@vector
def count_above(H, thresholds, counts):
    """``counts[k]`` = how many entries of row k of H lie above ``thresholds[k]``."""
    for k in range(H.shape[0]):
        row = H[k]
        threshold = thresholds[k]
        found = 0
        for i in range(row.shape[0]):
            found += row[i] > threshold
        counts[k] = found


@vector
def collect_above(H, thresholds, offsets, ids, values):
    """Write positions and values of the entries above each row's threshold, row k to ``offsets[k] … offsets[k+1]−1``.

    Every entry is written and the place moves on only past those that count: no branch that cannot be foreseen.
    """
    for k in range(H.shape[0]):
        row = H[k]
        threshold = thresholds[k]
        place = offsets[k]
        end = offsets[k + 1]
        for i in range(row.shape[0]):
            if place == end:
                break
            ids[place] = i
            values[place] = row[i]
            place += row[i] > threshold
