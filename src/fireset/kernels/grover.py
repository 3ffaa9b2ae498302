"""Simulation of searches by amplitude amplification, one measurement at a time, for ``fireset.quantum.search``.

After j iterations on N items of which k are marked, the state lies in the plane of the uniform superpositions of the
marked and of the other items, at the angle (2j + 1)θ with tan θ = √(k / (N − k)). A measurement gives a marked item
with probability sin²((2j + 1)θ), each of the k with equal probability. Nothing else of the N amplitudes is observable,
so only the angle is simulated.
"""

from math import atan2, sin, sqrt

from fireset.kernels.compiling import strict


@strict
def search(n_items, sizes, starts, counts, marked, generator, found, iterations, measurements, verdict, lo, hi):
    """Run the searches lo … hi−1 to their end.

    Search s has the marked items ``marked[starts[s] : starts[s] + counts[s]]``, which are reordered: measured items
    come first, in the order of their measurement. Phase t draws j uniformly below ``sizes[t]``, runs j iterations and
    measures. A marked item is removed from the oracle and the phases start again; the search ends when all phases have
    failed in a row. Each search writes the number of items ``found``, of Grover ``iterations`` and of ``measurements``,
    and as ``verdict`` the oracle calls after the last find (iterations, and one check for each measurement), which show
    that no item is left. Cost O(phases) for each item found.
    """
    for s in range(lo, hi):
        left = counts[s]
        angle = atan2(sqrt(float(left)), sqrt(float(n_items - left)))
        n_iterations = 0
        n_measurements = 0
        calls_since_find = 0
        phase = 0
        while phase < sizes.shape[0]:
            j = int(generator.random() * sizes[phase])
            n_iterations += j
            calls_since_find += j + 1
            n_measurements += 1
            amplitude = sin((2 * j + 1) * angle)
            if left > 0 and generator.random() < amplitude * amplitude:
                next_find = starts[s] + counts[s] - left  # items before this position are removed from the oracle
                measured = next_find + int(generator.random() * left)
                item = marked[measured]
                marked[measured] = marked[next_find]
                marked[next_find] = item
                left -= 1
                angle = atan2(sqrt(float(left)), sqrt(float(n_items - left)))
                calls_since_find = 0
                phase = 0
            else:
                phase += 1
        found[s] = counts[s] - left
        iterations[s] = n_iterations
        measurements[s] = n_measurements
        verdict[s] = calls_since_find
