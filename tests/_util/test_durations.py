"""Times as people write them."""

import pytest

from fireset import InputError
from fireset._util.durations import parse_seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("1s", 1), (" 90 S ", 90), ("1.5m", 90), ("10m", 600), ("2h", 7200), ("1.5 h", 5400), ("0.5", 0.5)],
)
def test_how_long(text, seconds):
    assert parse_seconds("budget", text) == seconds


@pytest.mark.parametrize("text", ["", "0", "-1", "10 minutes", "nan", "inf", "1e3", "9" * 400, "³s", "5000h", "5d"])
def test_a_time_that_is_none(text):
    with pytest.raises(InputError) as caught:
        parse_seconds("budget", text)
    assert str(caught.value) == f"budget must be a time such as 90s, 5m or 2h, got {text!r}"


def test_a_time_that_is_too_short():
    with pytest.raises(InputError) as caught:
        parse_seconds("worker_timeout", "0.5s", 1.0)
    assert str(caught.value) == "worker_timeout must be a time from 1s to 2400h such as 90s, 5m or 2h, got '0.5s'"
