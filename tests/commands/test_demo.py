"""The demonstration, on few neurons."""

import os
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
from sklearn.datasets import load_digits

from fireset import InputError
from fireset.commands.demo import run_demo
from fireset.model import Model


@pytest.mark.usefixtures("few_digits")
def test_demo(tmp_path, capsys):
    out = tmp_path / "demo.safetensors"
    summary = run_demo(width=300, out=out, seed=0, verbose=False)
    assert summary["test_accuracy"] > 0.85
    assert 0 < summary["active_fraction"] < 0.5
    assert summary["largest_relative_difference_of_loss"] < 1e-3  # the same run, in float32
    assert summary["speed_up_over_dense"] == pytest.approx(
        summary["dense_gradient_step_seconds"] / summary["gradient_step_seconds"]
    )
    assert summary["model"] == str(out)
    assert capsys.readouterr() == ("", "")

    model = Model.load(out)
    X, y = load_digits(return_X_y=True)
    names = [f"pixel_{row}_{column}" for row in range(8) for column in range(8)]
    predicted = model.estimator.predict(pl.DataFrame(X[:300], schema=names))
    assert np.mean(predicted == y[:300]) > 0.85


def test_a_place_that_cannot_be_written_is_known_first(tmp_path, monkeypatch):
    monkeypatch.setattr("fireset.commands.demo.load_digits", lambda **_: pytest.fail("went to work before checking"))
    with pytest.raises(InputError, match=r"^cannot write .*no folder"):
        run_demo(width=300, out=tmp_path / "missing" / "demo", seed=0, verbose=False)


def test_interrupt_ends_it(tmp_path, monkeypatch):
    def interrupted(estimator, *_):
        estimator.result_ = SimpleNamespace(stop_reason="interrupted")

    monkeypatch.setattr("fireset.commands.demo.ShiftedReLUClassifier.fit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_demo(width=300, out=tmp_path / "demo", seed=0, verbose=False)
    assert os.listdir(tmp_path) == []
