"""Everything within a distance, exactly, while points come and go: scooters on a map, under ids of their own.

Run it::

    python examples/within_distance.py [--scooters 50000]
"""

import argparse

import numpy as np

from fireset.hsr import BallIndex

CITY = 20_000.0  # metres from one side to the other
WALK = 250.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scooters", type=int, default=50_000)
    asked = parser.parse_args()
    rng = np.random.default_rng(0)

    # Coordinates are counted from the middle of the city: points near the origin are searched fastest.
    places = rng.uniform(-CITY / 2, CITY / 2, (asked.scooters, 2))
    plates = 700_000 + 3 * rng.permutation(asked.scooters)
    index = BallIndex(places, ids=plates)
    print(index)

    customer = np.array([120.0, -340.0])
    near = index.query(customer, WALK)
    print(f"{len(near)} scooters within {WALK:.0f} m of the customer: {near[:5].tolist()} …")

    # One is taken away, and another one is parked exactly at the limit: 150² + 200² = 250².
    index.delete(near[:1])
    index.add([customer + np.array([150.0, 200.0])], ids=[1])
    after = index.query(customer, WALK)
    assert not np.isin(near[:1], after).any()
    assert 1 in after
    print(f"{len(after)} after one was taken and one was parked at a distance of exactly {WALK:.0f} m")

    # Crowded places: how many neighbours each of a thousand scooters has within 50 m.
    some = index.get(index.ids[:1_000])
    indptr, _ = index.query_batch(some, 50.0)
    print(f"most scooters within 50 m of one of a thousand: {np.diff(indptr).max() - 1}")


if __name__ == "__main__":
    main()
