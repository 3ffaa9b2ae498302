"""Progress within an iteration: passes over the rows and tangent products, and the time left at their rate."""

import re

import numpy as np
import pytest
from rich.console import Console

from fireset import ShiftedReLUNetwork, train
from fireset.training import progress, work_meter
from fireset.training.progress import ProgressBar
from fireset.training.solvers import GaussNewton, NystromGaussNewton, linear_solver
from fireset.training.solvers.gauss_newton import _expected_products
from fireset.training.work_meter import WorkMeter
from support.checks import sphere

ROWS = 9000


def problem(rows: int = ROWS):
    X = sphere(np.random.default_rng(0), rows, 4)
    options = {"threshold": 0.5, "start": "antisymmetric", "output_scale": 1000.0, "dtype": "float64"}
    return ShiftedReLUNetwork.initialize(200, 4, **options), X, np.sin(3 * X[:, 0])


def reports(solver, rows: int = ROWS, **settings) -> list[tuple[str, float, float]]:
    """Train; return what the meter reported."""
    network, X, y = problem(rows)
    seen: list[tuple[str, float, float]] = []

    def attach(now) -> None:
        now.run.meter.listener = lambda meter: seen.append((meter.name, meter.done, meter.expected))

    train(network, X, y, solver=solver, callbacks=[attach], **settings)
    return seen


def test_seconds_left_are_those_at_the_measured_rate(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(work_meter.time, "monotonic", lambda: now[0])
    meter = WorkMeter()
    meter.begin("pass", done=50)
    assert meter.seconds_left == np.inf
    now[0] = 104.0
    meter.report(70, 100)  # 20 in 4 seconds, without the 50 that were done before
    assert meter.seconds_left == pytest.approx(6.0)
    meter.report(120, 100)
    assert (meter.expected, meter.seconds_left) == (120, 0.0)


def test_a_pass_reports_its_rows():
    seen = reports(NystromGaussNewton(tol=1e-3, centres=20), tol=1e-3)
    assert seen == [("pass", 4096, ROWS), ("pass", 8192, ROWS), ("pass", ROWS, ROWS)]


def test_a_linear_system_reports_its_products(monkeypatch):
    monkeypatch.setattr(linear_solver, "FULL_CHOLESKY_ROWS", 10)
    monkeypatch.setattr(linear_solver, "_MAX_CHOLESKY_ROWS", 10)
    monkeypatch.setattr(linear_solver, "_MAX_PIVOTS", 15)
    seen = reports(GaussNewton(tol=1e-6), 300, engine="data", tol=1e-6)
    made = [done for _, done, _ in seen]
    assert {name for name, _, _ in seen} == {"system"}
    assert max(made) > 5
    assert all(done <= expected <= max(done, linear_solver.MAX_PRODUCTS) for _, done, expected in seen)


def test_expected_products():
    assert _expected_products([1.0], 0.1) == linear_solver.MAX_PRODUCTS  # no rate yet
    assert _expected_products([1.0, 0.1, 0.01], 1e-4) == pytest.approx(5)  # a tenth by each product
    assert _expected_products([1.0, 0.99], 1e-8) == linear_solver.MAX_PRODUCTS
    assert _expected_products([1.0, 0.05], 0.1) == 2


def test_progress_lines_show_the_pass(monkeypatch, capsys):
    """Without a terminal lines are printed; here without a pause between two."""
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_LINES", 0.0)
    network, X, y = problem()
    solver = NystromGaussNewton(tol=1e-3, centres=20)
    with ProgressBar() as bar:
        train(network, X, y, solver=solver, tol=1e-3, callbacks=[bar])
    found = re.findall(r"training: round 0 .* pass (\d+) %, \d+ s left", capsys.readouterr().err)
    assert found == ["46", "91", "100"]


def test_a_terminal_shows_the_pass():
    bar, meter = ProgressBar(console=Console(force_terminal=True, width=130, stderr=True)), WorkMeter()
    meter.listener = bar._show_work
    meter.begin("pass")
    meter.report(30, 120)
    assert "pass 25 %, 0 s left" in bar._bar.tasks[0].fields["state"]
