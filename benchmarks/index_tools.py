"""Points, turns and tables of the benchmarks of half-space indexes."""

import time

import numpy as np

TURN = 0.25  # seconds


def gaussian(n: int, d: int, dtype="float32", seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, d)).astype(dtype)


def sphere(n: int, d: int, dtype="float32", seed: int = 1) -> np.ndarray:
    rows = gaussian(n, d, "float64", seed)
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(dtype)


def paper_threshold(n: int) -> float:
    return float(np.sqrt(0.4 * np.log(n)))


def timed(function) -> float:
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def alternating(contenders: dict, rounds: int) -> dict[str, float]:
    """Median over the turns of each one's mean seconds in a turn; taken in turns, a noisy moment hits all of them."""
    for function in contenders.values():
        function()
    seconds = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, function in contenders.items():
            time.sleep(0.1)  # threads of BLAS and OpenMP go on spinning for a while, on cores that the next one needs
            calls = [timed(function)]
            while sum(calls) < TURN:  # as timeit does: what is short is called more often
                calls.append(timed(function))
            seconds[name].append(float(np.mean(calls)))
    return {name: float(np.median(all_of_it)) for name, all_of_it in seconds.items()}


def table(*columns: str, rows: list[list[str]]) -> list[str]:
    """A Markdown table, numbers to the right."""
    lines = ["| " + " | ".join(columns) + " |", "|" + " ---: |" * len(columns)]
    return ["", *lines, *("| " + " | ".join(row) + " |" for row in rows), ""]
