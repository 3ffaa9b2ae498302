"""A fixed share of the mutated files of ``fuzzing.py``; ``make fuzz`` reads 100,000."""

import pytest

import fuzzing


@pytest.mark.slow
def test_no_mutated_file_does_harm():
    result = fuzzing.run_child(seed=0, count=2000)
    assert result["findings"] == []
    counts = result["counts"]
    assert sum(counts.values()) == 2000
    for kind in ("model", "checkpoint", "csv"):  # none is refused for a reason that has nothing to do with it
        assert counts[f"{kind} read"] > 20
        assert counts[f"{kind} refused"] > 200
