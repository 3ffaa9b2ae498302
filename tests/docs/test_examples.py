"""Every program in ``examples/`` runs."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

ARGUMENTS = {  # small settings
    "sklearn_model": ["--width", "300"],
    "shared_index": ["--width", "500", "--iterations", "5"],
    "within_distance": ["--scooters", "3000"],
    "make_rentals": ["."],
}
SLOW = {  # with figures, large problems, or several processes
    "command_line": ["."],
    "torch_layer": ["--width", "400", "--epochs", "1"],
    "above_threshold": ["--out", "figure.png"],
    "certificate": [],
    "digits": ["--width", "300", "--out", "figure.png"],
    "fit_surface": ["--width", "300", "--seconds", "2", "--out", "figure.png"],
    "regression_table": ["--width", "300", "--out", "figure.png"],
}
ELSEWHERE = {"serve_model", "ray_train"}  # run by test_newcomers.py and test_launchers.py


def run(example: str, arguments: list[str], folder: Path) -> str:
    command = [sys.executable, str(EXAMPLES / f"{example}.py"), *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow  # starts other programs
@pytest.mark.parametrize("example", ARGUMENTS)
def test_example_runs(example, tmp_path):
    printed = run(example, ARGUMENTS[example], tmp_path)
    assert printed.strip() or list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("example", SLOW)
def test_slow_example_runs(example, tmp_path):
    if example == "torch_layer":
        pytest.importorskip("torch")
    printed = run(example, SLOW[example], tmp_path)
    assert printed.strip()
    if "figure.png" in SLOW[example]:
        assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_every_example_is_run():
    assert {file.stem for file in EXAMPLES.glob("*.py")} == {*ARGUMENTS, *SLOW, *ELSEWHERE}
