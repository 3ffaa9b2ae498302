"""On a terminal of 60 columns progress is one line, with the numbers that count."""

import io
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from fireset.commands.compare.budget import StageBar
from fireset.training.progress import ProgressBar
from fireset.training.solvers import solver_class
from fireset.training.work_meter import WorkMeter


def console(width: int) -> Console:
    return Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)


def drawn(on: Console, renderable) -> str:
    with on.capture() as shown:
        on.print(renderable)
    lines = shown.get().rstrip("\n").split("\n")
    assert len(lines) == 1
    assert len(lines[0]) <= on.width
    return lines[0]


def progress(iteration: int, solver: str) -> Any:
    record = SimpleNamespace(
        loss=1234.5678, active_fraction=0.02345, validation_loss=0.3456, iteration=iteration, seconds=10.0
    )
    run = SimpleNamespace(solver=solver_class(solver), meter=WorkMeter())
    return SimpleNamespace(record=record, max_iter=30_000, run=run)


@pytest.mark.parametrize("solver", ["gradient", "gauss-newton"])
def test_training(solver):
    on = console(60)
    bar = ProgressBar(console=on)
    assert "preparing" in drawn(on, bar._bar.get_renderable())
    for iteration in (12_000, 12_001, 12_002):
        bar(progress(iteration, solver))
    line = drawn(on, bar._bar.get_renderable())
    assert "12002/30000" in line or (solver == "gauss-newton" and "12002/?" in line)
    assert "loss 1235" in line
    assert "active 2.3" in line


def test_a_wide_terminal_has_a_bar():
    on = console(140)
    bar = ProgressBar(console=on)
    bar(progress(12_000, "gradient"))
    line = drawn(on, bar._bar.get_renderable())
    assert "training" in line
    assert "━" in line
    assert "validation 0.3456" in line


def test_stages_have_the_time_left_first():
    on = console(60)
    bar = StageBar("comparing", remaining=lambda: 41.3, console=on)
    bar.show("[support] vector machine, split 1, 12,000 of 16,000 rows")
    line = drawn(on, bar._status.renderable)
    assert "comparing, 41 s left: [support] vector machine" in line
    assert line.endswith("…")
