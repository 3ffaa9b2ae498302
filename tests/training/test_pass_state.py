"""Sums over the rows that are stored during a pass: a run that was killed in it continues with the same bits."""

import numpy as np
import pytest

from fireset.engines import centre_kernel
from fireset.network import ShiftedReLUNetwork
from fireset.training import pass_state
from fireset.training.checkpoint import Checkpoints
from fireset.training.loop import train
from fireset.training.pass_state import PassState
from fireset.training.solvers import NystromGaussNewton

ROWS, BLOCK = 1000, 100


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(pass_state, "_SECONDS", 0.0)
    monkeypatch.setattr(centre_kernel, "BLOCK_ROWS", BLOCK)


def problem(outputs: int) -> tuple[ShiftedReLUNetwork, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(ROWS, 5))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    y = np.column_stack([np.sin(3 * X[:, k]) for k in range(outputs)])
    start = "antisymmetric" if outputs == 1 else "orthogonal"
    network = ShiftedReLUNetwork.initialize(
        256, 5, outputs, threshold=1.0, seed=1, start=start, output_scale=1000.0, dtype="float32"
    )
    return network, X, y


def run(outputs: int, loss: str, **settings) -> np.ndarray:
    network, X, y = problem(outputs)
    if loss == "log_loss":
        y = (y > 0).astype(float)
    train(network, X, y, solver=NystromGaussNewton(centres=60), loss=loss, max_iter=20, **settings)
    return network.weights


class KilledError(Exception):
    pass


def killed_after(blocks: int, monkeypatch) -> list[int]:
    """Make the kernel raise after a number of blocks; return the list of first rows of the blocks that it computes."""
    computed: list[int] = []
    original = centre_kernel.CentreKernel.blocks

    def counted(self, X, start=0):
        for rows, K in original(self, X, start):
            if len(computed) == blocks:
                raise KilledError
            computed.append(rows.start)
            yield rows, K

    monkeypatch.setattr(centre_kernel.CentreKernel, "blocks", counted)
    return computed


@pytest.mark.parametrize(
    ("outputs", "loss", "blocks", "first"),
    [
        (1, "squared_error", 1, 100),
        (1, "squared_error", 7, 700),
        (2, "squared_error", 4, 400),
        (1, "log_loss", 4, 400),
        (1, "log_loss", 13, 300),  # in the second pass
    ],
)
def test_a_killed_pass_continues_with_the_same_bits(tmp_path, monkeypatch, outputs, loss, blocks, first):
    whole = run(outputs, loss)
    with monkeypatch.context() as context:
        killed_after(blocks, context)
        with pytest.raises(KilledError):
            run(outputs, loss, checkpoint=Checkpoints(tmp_path))
    assert list(tmp_path.glob("pass-*.safetensors"))
    with monkeypatch.context() as context:
        computed = killed_after(10**9, context)
        resumed = run(outputs, loss, checkpoint=Checkpoints(tmp_path, resume=True))
    assert computed[0] == first
    np.testing.assert_array_equal(resumed, whole)
    assert not list(tmp_path.glob("*pass-*"))


def test_other_files_of_the_folder_are_kept(tmp_path, monkeypatch):
    others = [tmp_path / name for name in ("pass-v1.safetensors", "pass-table.csv")]
    for file in others:
        file.touch()
    stored = tmp_path / f"pass-{'0' * 32}.safetensors"
    stored.touch()
    state = PassState(tmp_path, {})
    state.clear()
    assert not stored.exists()
    assert all(file.exists() for file in others)
    stored.touch()

    def refuse(*_, **__):
        raise PermissionError

    monkeypatch.setattr(type(stored), "unlink", refuse)
    state.clear()  # the model is not saved yet: an error would lose it
    assert stored.exists()


def test_stored_sums_of_other_data_and_damaged_files_are_not_used(tmp_path, monkeypatch):
    with monkeypatch.context() as context:
        killed_after(5, context)
        with pytest.raises(KilledError):
            run(1, "squared_error", checkpoint=Checkpoints(tmp_path))
    (stored,) = tmp_path.glob("pass-*.safetensors")
    with monkeypatch.context() as context:
        computed = killed_after(10**9, context)
        run(1, "log_loss", checkpoint=Checkpoints(tmp_path / "other"))
        assert computed[0] == 0
    content = bytearray(stored.read_bytes())
    content[-100] ^= 1
    stored.write_bytes(content)
    with monkeypatch.context() as context:
        computed = killed_after(10**9, context)
        with pytest.warns(UserWarning, match="damaged"):
            resumed = run(1, "squared_error", checkpoint=Checkpoints(tmp_path, resume=True))
    assert computed[0] == 0
    np.testing.assert_array_equal(resumed, run(1, "squared_error"))
