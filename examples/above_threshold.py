"""Every item scoring above a threshold, while items come and go.

A shop keeps a vector for each item; a customer is a vector too, and an item is worth showing when the inner product of
both is above a threshold. All of them are wanted, not the ten nearest or most of them; items are added, sold out and
repriced all day. Run it::

    python examples/above_threshold.py
"""

import time

import numpy as np

from fireset import hsr

ITEMS, FEATURES, CUSTOMERS = 200_000, 4, 1_000
WORTH_SHOWING = 2.5


def main() -> None:
    rng = np.random.default_rng(0)
    items = rng.standard_normal((ITEMS, FEATURES)).astype(np.float32)
    customers = rng.standard_normal((CUSTOMERS, FEATURES)).astype(np.float32)
    customers /= np.linalg.norm(customers, axis=1, keepdims=True)
    thresholds = np.full(CUSTOMERS, WORTH_SHOWING)

    index = hsr.build(items)  # kind="auto": a tree here; in high dimension a scan
    index.query_batch(customers[:2], thresholds[:2])  # the first query compiles
    print(f"{len(index):,} items in {FEATURES} dimensions, kind {index.kind!r}")

    # One customer, then all of them on all cores.
    print(f"customer 0 is shown {len(index.query(customers[0], WORTH_SHOWING)):,} items")
    started = time.perf_counter()
    _, ids = index.query_batch(customers, thresholds)
    took = time.perf_counter() - started
    print(f"{CUSTOMERS:,} customers, {len(ids):,} items shown, {1e6 * took / CUSTOMERS:.0f} µs each")

    started = time.perf_counter()
    scores = customers @ items.T
    everything = np.count_nonzero(scores > np.float32(WORTH_SHOWING))
    print(
        f"looking at every pair: {1e6 * (time.perf_counter() - started) / CUSTOMERS:.0f} µs each, {everything:,} items"
    )

    # A day in the shop. Ids are stable: what was sold does not come back under its number.
    sold = rng.choice(ITEMS, 2_000, replace=False)
    repriced = np.setdiff1d(rng.choice(ITEMS, 2_000, replace=False), sold)
    started = time.perf_counter()
    index.delete(sold)
    new = index.add(rng.standard_normal((2_000, FEATURES)))
    index.move(repriced, items[repriced] * 0.9)
    took = time.perf_counter() - started
    print(f"{len(sold):,} sold, {len(new):,} new, {len(repriced):,} repriced in {1e3 * took:.1f} ms")

    shown = index.query(customers[0], WORTH_SHOWING)
    assert not np.isin(sold, shown).any()
    print(f"customer 0 is shown {len(shown):,} items now; new among them: {np.isin(new, shown).sum()}")
    work = index.work
    share = work.points_tested / (work.queries * len(index))
    print(f"inner products computed: {share:.1%} of all pairs; reported in bulk: {work.points_in_bulk:,}")


if __name__ == "__main__":
    main()
