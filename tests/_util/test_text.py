"""Durations that users write."""

import pytest

from fireset import InputError
from fireset._util.text import parse_seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("1s", 1), (" 90 S ", 90), ("1.5m", 90), ("10m", 600), ("2h", 7200), ("1.5 h", 5400), ("0.5", 0.5)],
)
def test_units_of_a_duration(text, seconds):
    assert parse_seconds("budget", text) == seconds


@pytest.mark.parametrize("text", ["", "0", "-1", "10 minutes", "nan", "inf", "1e3", "9" * 400, "³s", "5000h", "5d"])
def test_invalid_durations_are_refused(text):
    with pytest.raises(InputError, match=r"^budget must") as caught:
        parse_seconds("budget", text)
    assert str(caught.value).endswith(f"got {text!r}")


def test_a_duration_below_the_minimum_is_refused():
    with pytest.raises(InputError, match=r"worker_timeout.* 1s .*got '0\.5s'"):
        parse_seconds("worker_timeout", "0.5s", 1.0)
