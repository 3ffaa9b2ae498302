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
def collect_above(H, thresholds, offsets, places, values):
    """Write positions and values of the entries above each row's threshold, row k to ``offsets[k] … offsets[k+1]−1``.

    A plain branch: few entries count, so it is foreseen nearly always, and beats both writing every entry and glancing
    at groups of entries first (measured at 3 %: 0.7 against 1.2 and 1.4 ns an entry).
    """
    for k in range(H.shape[0]):
        threshold = thresholds[k]
        place = offsets[k]
        for i in range(H.shape[1]):
            if H[k, i] > threshold:
                places[place] = i
                values[place] = H[k, i]
                place += 1
