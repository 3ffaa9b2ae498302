"""Searches by amplitude amplification, measurement by measurement: the loop behind ``fireset.quantum.search``.

After j iterations on N items of which k are marked, the state lies in the plane of the uniform superpositions of the
marked and of the other items, at the angle (2j + 1)θ with tan θ = √(k / (N − k)). A measurement gives a marked item
with probability sin²((2j + 1)θ), each of the k alike: nothing else of the state of N amplitudes can be measured, so
nothing else is simulated.
"""

from math import atan2, sin, sqrt

from fireset.kernels.compiling import strict


@strict
def search(n_items, sizes, starts, counts, marked, generator, found, iterations, measurements, verdict, lo, hi):
    """Run the searches lo … hi−1 to their end.

    Search s has the ``counts[s]`` marked items from ``starts[s]`` on in ``marked``, which is reordered: those that were
    measured come first, in the order in which they were. Phase t draws j uniformly below ``sizes[t]``, runs j
    iterations and measures. A marked item is taken out of the oracle and the phases begin again; when all of them have
    failed in a row, the search ends. Written for each search: how many were ``found``, how many Grover ``iterations``
    and ``measurements`` it took, and how many calls of the oracle (iterations, and a check for each measurement) came
    after the last find, the ``verdict`` that nothing is left. Cost O(phases) for each item found.
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
                next_find = starts[s] + counts[s] - left  # items before this position are out of the oracle
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
