"""All points within a distance, exactly, while points are added and deleted: scooters on a map, with given ids.


python examples/within_distance.py [--scooters 50000]
"""

import argparse

import numpy as np

from fireset.hsr import BallIndex

CITY = 20_000.0  # side length in metres
WALK = 250.0  # metres


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scooters", type=int, default=50_000)
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)

    # Coordinates are relative to the middle of the city: queries are fastest for points near the origin.
    places = rng.uniform(-CITY / 2, CITY / 2, (arguments.scooters, 2))
    plates = 700_000 + 3 * rng.permutation(arguments.scooters)
    index = BallIndex(places, ids=plates)
    print(index)

    customer = np.array([120.0, -340.0])
    near = index.query(customer, WALK)
    print(f"{len(near)} scooters within {WALK:.0f} m of the customer: {near[:5].tolist()} …")

    # Delete one scooter, and add one exactly at the limit: 150² + 200² = 250².
    index.delete(near[:1])
    index.add([customer + np.array([150.0, 200.0])], ids=[1])
    after = index.query(customer, WALK)
    assert not np.isin(near[:1], after).any()
    assert 1 in after
    print(f"{len(after)} after one was deleted and one added at a distance of exactly {WALK:.0f} m")

    # Number of neighbours within 50 m of each of a thousand scooters.
    some = index.get(index.ids[:1_000])
    indptr, _ = index.query_batch(some, 50.0)
    print(f"largest number of neighbours within 50 m: {np.diff(indptr).max() - 1}")


if __name__ == "__main__":
    main()
