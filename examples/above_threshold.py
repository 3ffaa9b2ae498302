"""All items with a score above a threshold, while items are added and deleted.

Items and customers of a shop are vectors; an item is shown to a customer if their inner product is above a threshold.
All such items are needed, not the ten nearest; items are added, sold and repriced. The figure shows the scores of one
customer, and the time per query as the shop grows. Needs matplotlib::

    python examples/above_threshold.py [--out above_threshold.png]
"""

import argparse
import time

import matplotlib.pyplot as plt
import numpy as np

from fireset import hsr

ITEMS, FEATURES, CUSTOMERS = 200_000, 4, 1_000
MIN_SCORE = 2.5


def seconds_per_customer(query) -> float:
    started = time.perf_counter()
    query()
    return (time.perf_counter() - started) / CUSTOMERS


def draw(items: np.ndarray, customers: np.ndarray, path: str) -> None:
    """Draw the scores of customer 0, and the time per customer by the number of items, with the index and without."""
    figure, (scores, growth) = plt.subplots(1, 2, figsize=(11, 4.4), layout="constrained")
    values = items @ customers[0]
    places = np.histogram_bin_edges(values, 80)
    above = values > MIN_SCORE
    scores.hist(values[~above], places, color="#c9d1d9", label="not shown")
    scores.hist(values[above], places, color="#d1495b", label=f"shown: {above.sum():,} of {len(items):,}")
    scores.axvline(MIN_SCORE, color="#30363d", ls="--", lw=1)
    scores.set(
        xlabel="score for customer 0",
        ylabel="items",
        title="Every item above the threshold",
        yscale="log",
        ylim=(None, 3e5),
    )
    scores.legend(frameon=False, loc="upper center", ncols=2)

    counts = [ITEMS // 64, ITEMS // 16, ITEMS // 4, ITEMS]
    thresholds = np.full(CUSTOMERS, MIN_SCORE)
    indices = [hsr.build(items[:count]) for count in counts]
    for index in indices:
        index.query_batch(customers[:2], thresholds[:2])  # compiles the scan of small shops
    tree = [seconds_per_customer(lambda i=i: i.query_batch(customers, thresholds)) for i in indices]
    scan = [
        seconds_per_customer(lambda n=n: np.count_nonzero(customers @ items[:n].T > np.float32(MIN_SCORE)))
        for n in counts
    ]
    growth.loglog(counts, 1e6 * np.array(scan), "o-", color="#30363d", label="every pair, counted")
    growth.loglog(counts, 1e6 * np.array(tree), "o-", color="#d1495b", label="index, listed")
    growth.set(xlabel="items", ylabel="µs per customer", title=f"Time per query, {FEATURES} coordinates")
    growth.legend(frameon=False)
    for axes in (scores, growth):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default="above_threshold.png")
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    items = rng.standard_normal((ITEMS, FEATURES)).astype(np.float32)
    customers = rng.standard_normal((CUSTOMERS, FEATURES)).astype(np.float32)
    customers /= np.linalg.norm(customers, axis=1, keepdims=True)
    thresholds = np.full(CUSTOMERS, MIN_SCORE)

    index = hsr.build(items)  # kind="auto": a tree here; in high dimension a scan
    index.query_batch(customers[:2], thresholds[:2])  # the first query compiles
    print(f"{len(index):,} items in {FEATURES} dimensions, kind {index.kind!r}")

    # One customer, then all customers on all cores.
    print(f"customer 0 is shown {len(index.query(customers[0], MIN_SCORE)):,} items")
    started = time.perf_counter()
    _, ids = index.query_batch(customers, thresholds)
    took = time.perf_counter() - started
    print(f"{CUSTOMERS:,} customers, {len(ids):,} items shown, {1e6 * took / CUSTOMERS:.0f} µs each")

    started = time.perf_counter()
    scores = customers @ items.T
    everything = np.count_nonzero(scores > np.float32(MIN_SCORE))
    print(f"every pair: {1e6 * (time.perf_counter() - started) / CUSTOMERS:.0f} µs each, {everything:,} items")

    # Changes. Ids are stable: the id of a sold item is not reused.
    sold = rng.choice(ITEMS, 2_000, replace=False)
    repriced = np.setdiff1d(rng.choice(ITEMS, 2_000, replace=False), sold)
    started = time.perf_counter()
    index.delete(sold)
    new = index.add(rng.standard_normal((2_000, FEATURES)))
    index.move(repriced, items[repriced] * 0.9)
    took = time.perf_counter() - started
    print(f"{len(sold):,} sold, {len(new):,} new, {len(repriced):,} repriced in {1e3 * took:.1f} ms")

    shown = index.query(customers[0], MIN_SCORE)
    assert not np.isin(sold, shown).any()
    print(f"customer 0 is shown {len(shown):,} items now; new among them: {np.isin(new, shown).sum()}")
    work = index.work
    share = work.points_tested / (work.queries * len(index))
    print(f"inner products computed: {share:.1%} of all pairs; reported in bulk: {work.points_in_bulk:,}")

    draw(items, customers, arguments.out)
    print(f"figure in {arguments.out}")


if __name__ == "__main__":
    main()
