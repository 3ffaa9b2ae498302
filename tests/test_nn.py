"""The layer for PyTorch: the same numbers as a plain implementation, whatever the optimizer does."""

import copy
import io
import pickle
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from fireset import InputError, ShiftedReLUNetwork, train  # noqa: E402
from fireset._util.errors import CertificateError  # noqa: E402
from fireset.engines.row_lists import RowLists  # noqa: E402
from fireset.nn import ShiftedReLU  # noqa: E402

nn, functional = torch.nn, torch.nn.functional
DOUBLE = torch.float64
GENERATOR = torch.Generator().manual_seed(3)


def rows(n: int, d: int, dtype=DOUBLE):
    return functional.normalize(torch.randn(n, d, dtype=dtype, generator=GENERATOR))


def table_of(layer: ShiftedReLU):
    assert layer._attached is not None
    return layer._attached.X


def lists_of(layer: ShiftedReLU) -> RowLists:
    assert layer._attached is not None
    assert layer._attached._lists is not None
    return layer._attached._lists


class Plain(nn.Module):
    """The same function by ``torch.nn.Linear``."""

    def __init__(self, layer: ShiftedReLU):
        super().__init__()
        m, d = layer.weight.shape
        self.hidden, self.out = nn.Linear(d, m, bias=False), nn.Linear(m, layer.outputs.shape[1], bias=False)
        self.hidden.weight = nn.Parameter(layer.weight.detach().clone())
        trained = isinstance(layer.outputs, nn.Parameter)
        self.out.weight = nn.Parameter(layer.outputs.detach().T.contiguous().clone(), requires_grad=trained)
        self.threshold, self.factor = layer.threshold, layer.output_scale / m**0.5

    def forward(self, x):
        return self.out(torch.relu(self.hidden(x) - self.threshold)) * self.factor


def assert_same_parameters(layer, plain, atol=1e-9):
    torch.testing.assert_close(layer.weight, plain.hidden.weight, rtol=0, atol=atol)
    torch.testing.assert_close(layer.outputs, plain.out.weight.T, rtol=0, atol=atol)


class TestGradients:
    @pytest.mark.parametrize(("features", "outputs"), [(1, 1), (5, 1), (8, 3), (17, 2)])
    @pytest.mark.parametrize("trained", [False, True])
    def test_gradcheck(self, features, outputs, trained):
        layer = ShiftedReLU(features, 40, outputs, threshold=0.4, trained_outputs=trained, dtype=DOUBLE)
        x = torch.randn(6, features, dtype=DOUBLE, generator=GENERATOR, requires_grad=True)

        def function(x, *parameters):
            names = [name for name, _ in layer.named_parameters()]
            return torch.func.functional_call(layer, dict(zip(names, parameters, strict=True)), (x,))

        assert torch.autograd.gradcheck(function, (x, *layer.parameters()))

    @pytest.mark.parametrize("trained", [False, True])
    def test_gradcheck_of_attached_rows(self, trained):
        layer = ShiftedReLU(5, 40, 2, threshold=0.4, trained_outputs=trained, dtype=DOUBLE).attach(rows(9, 5))
        index = torch.tensor([[0, 3], [3, 8]])

        def function(*parameters):
            names = [name for name, _ in layer.named_parameters()]
            return torch.func.functional_call(layer, dict(zip(names, parameters, strict=True)), kwargs={"rows": index})

        assert torch.autograd.gradcheck(function, tuple(layer.parameters()))

    @given(
        n=st.integers(0, 7),
        features=st.integers(1, 20),
        width=st.integers(2, 90),
        outputs=st.integers(1, 3),
        threshold=st.sampled_from([-1.0, 0.0, 0.7, 5.0]),
        seed=st.integers(0, 99),
    )
    def test_any_shape(self, n, features, width, outputs, threshold, seed):
        """Duplicates, empty batches, rows whose inner products lie on the threshold: as the plain implementation."""
        generator = torch.Generator().manual_seed(seed)
        layer = ShiftedReLU(features, width, outputs, threshold, trained_outputs=True, seed=seed, dtype=DOUBLE)
        x = torch.randn(n, features, dtype=DOUBLE, generator=generator)
        if n > 2:
            x[1] = x[0]
            with torch.no_grad():  # ⟨w, x⟩ = b exactly
                layer.weight[0] = 0.0
                layer.weight[0, 0] = threshold
                x[2] = 0.0
                x[2, 0] = 1.0
        plain = Plain(layer)
        layer.attach(x)
        x = x.clone().requires_grad_()
        direction = torch.randn(n, outputs, dtype=DOUBLE, generator=generator)
        (plain(x) * direction).sum().backward()
        expected_x, x.grad = x.grad, None
        for found in (layer(x), layer(rows=range(n))):
            torch.testing.assert_close(found, plain(x), rtol=0, atol=1e-11)
            layer.zero_grad()
            (found * direction).sum().backward()
            torch.testing.assert_close(layer.weight.grad, plain.hidden.weight.grad, rtol=0, atol=1e-11)
            torch.testing.assert_close(layer.outputs.grad, plain.out.weight.grad.T, rtol=0, atol=1e-11)
        torch.testing.assert_close(x.grad, expected_x, rtol=0, atol=1e-11)

    def test_sparse_gradients_are_the_dense_ones(self):
        dense = ShiftedReLU(6, 300, 2, threshold=1.5, dtype=DOUBLE)
        sparse = ShiftedReLU(6, 300, 2, threshold=1.5, sparse=True, dtype=DOUBLE)
        x = rows(3, 6)
        for layer in (dense, sparse):
            layer(x).square().sum().backward()
        found = sparse.weight.grad
        assert found is not None
        assert found.is_sparse
        assert 0 < found._nnz() < 300
        torch.testing.assert_close(found.to_dense(), dense.weight.grad, rtol=0, atol=0)

    def test_two_passes_before_one_backward(self):
        """Each remembers its own fired pairs."""
        layer = ShiftedReLU(6, 300, dtype=DOUBLE, threshold=1.0).attach(rows(20, 6))
        plain = Plain(layer)
        X = table_of(layer)
        first, second = layer(rows=[0, 1, 2]), layer(rows=range(5, 20))
        (first.sum() * second.sum()).backward()
        (plain(X[:3]).sum() * plain(X[5:]).sum()).backward()
        torch.testing.assert_close(layer.weight.grad, plain.hidden.weight.grad, rtol=0, atol=1e-10)


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.5),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.2, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "lbfgs": lambda p: torch.optim.LBFGS(p, lr=0.3, max_iter=4, history_size=5),
}


@pytest.mark.parametrize("attached", [False, True])
@pytest.mark.parametrize(
    ("optimizer", "batch"),
    [(name, batch) for name in OPTIMIZERS for batch in (None, 16) if name != "lbfgs" or not batch],  # that wants all
)
def test_a_hundred_steps(optimizer, batch, attached):
    """The weights of a plain implementation to 1e-9, under every optimizer."""
    X = rows(60, 7)
    y = torch.sin(3 * X[:, :2])
    layer = ShiftedReLU(7, 200, 2, threshold=1.0, trained_outputs=True, seed=1, dtype=DOUBLE)
    plain = Plain(layer)
    if attached:
        layer.attach(X)
    ours = OPTIMIZERS[optimizer](list(layer.parameters()))
    theirs = OPTIMIZERS[optimizer](list(plain.parameters()))
    order = np.random.default_rng(0)
    for _ in range(100):
        index = torch.from_numpy(order.permutation(60)[:batch] if batch else np.arange(60))

        def closure(optimizer, predict, index=index):
            def run():
                optimizer.zero_grad()
                loss = (predict(index) - y[index]).square().sum()
                loss.backward()
                return loss

            return run

        ours.step(closure(ours, (lambda k: layer(rows=k)) if attached else (lambda k: layer(X[k]))))
        theirs.step(closure(theirs, lambda k: plain(X[k])))
    assert (layer.weight - ShiftedReLU(7, 200, 2, threshold=1.0, seed=1, dtype=DOUBLE).weight).abs().max() > 0.05
    assert_same_parameters(layer, plain)


def test_lists_are_begun_anew_as_weights_move():
    """Large steps wear the lists out; nothing is missed, and the lists are made for longer ways."""
    X = rows(50, 6)
    layer = ShiftedReLU(6, 500, threshold=1.0, dtype=DOUBLE).attach(X)
    generator = torch.Generator().manual_seed(0)
    for _ in range(40):
        with torch.no_grad():
            layer.weight += 0.05 * torch.randn(layer.weight.shape, dtype=DOUBLE, generator=generator)
        torch.testing.assert_close(layer(rows=range(50)), Plain(layer)(X), rtol=0, atol=1e-12)
    assert lists_of(layer).begun > 3
    with torch.no_grad():  # one neuron runs away: it is looked at for all rows, and the lists stay
        before = lists_of(layer).begun
        layer.weight[7] *= 30.0
    torch.testing.assert_close(layer(rows=range(50)), Plain(layer)(X), rtol=0, atol=1e-11)
    assert lists_of(layer).begun == before


@pytest.mark.parametrize("features", [5, 64, 512, 784])
def test_nothing_is_kept_on_the_memory_of_others(features):
    """Lists are held against copies of weights and rows, also where long rows need not be laid out anew."""
    X = rows(12, features, torch.float32)
    layer = ShiftedReLU(features, 300, threshold=1.0).attach(X)
    layer(rows=range(12))
    with torch.no_grad():
        layer.weight.copy_(torch.randn(layer.weight.shape, generator=GENERATOR))
    torch.testing.assert_close(layer(rows=range(12)), Plain(layer)(X), rtol=0, atol=1e-5)
    assert lists_of(layer).begun == 2
    X[3] *= 1.5
    with pytest.raises(InputError, match="the attached X has changed"):
        layer(rows=[3])


def test_behind_and_before_other_layers():
    """Features learned before it, and a head behind it."""
    torch.manual_seed(0)
    wide = ShiftedReLU(8, 400, 5, threshold=1.0, dtype=DOUBLE)
    before, head = nn.Linear(4, 8, dtype=DOUBLE), nn.Linear(5, 3, dtype=DOUBLE)
    ours = nn.Sequential(before, wide, nn.Tanh(), head)
    theirs = nn.Sequential(copy.deepcopy(before), Plain(wide), nn.Tanh(), copy.deepcopy(head))
    x, classes = torch.randn(30, 4, dtype=DOUBLE), torch.arange(30) % 3
    for model in (ours, theirs):
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for _ in range(30):
            optimizer.zero_grad()
            functional.cross_entropy(model(x), classes).backward()
            optimizer.step()
    torch.testing.assert_close(ours(x), theirs(x), rtol=0, atol=1e-9)
    assert functional.cross_entropy(ours(x), classes) < 0.9


class TestMemory:
    def test_is_shared_with_a_network_both_ways(self):
        network = ShiftedReLUNetwork.initialize(100, 5, 2, dtype="float64")
        layer = ShiftedReLU.from_network(network)
        X = rows(10, 5)
        with torch.no_grad():
            layer.weight[0] += 1.0
        np.testing.assert_allclose(network.predict(X.numpy()), layer(X).detach().numpy(), rtol=0, atol=1e-12)
        again = layer.to_network()
        assert np.shares_memory(again.weights, network.weights)
        train(again, X.numpy(), np.zeros((10, 2)), max_iter=3, tol=0)
        assert np.array_equal(layer.weight.detach().numpy(), again.weights)

    def test_copies_and_files(self, tmp_path):
        layer = ShiftedReLU(5, 64, 2, threshold=0.7, trained_outputs=True).attach(rows(6, 5, torch.float32))
        expected = layer(rows=range(6))
        buffer = io.BytesIO()
        torch.save(layer, buffer)
        buffer.seek(0)
        for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), torch.load(buffer, weights_only=False)):
            torch.testing.assert_close(other(rows=range(6)), expected, rtol=0, atol=0)
            with torch.no_grad():
                other.weight.zero_()
        torch.testing.assert_close(layer(rows=range(6)), expected, rtol=0, atol=0)
        torch.save(layer.state_dict(), tmp_path / "layer.pt")
        fresh = ShiftedReLU(5, 64, 2, seed=9, trained_outputs=True).attach(rows(6, 5, torch.float32))
        fresh(rows=[0])
        fresh.load_state_dict(torch.load(tmp_path / "layer.pt"))
        assert fresh.threshold == layer.threshold
        X = table_of(layer)
        torch.testing.assert_close(fresh(X), layer(X), rtol=0, atol=0)

    def test_loaded_weights_are_followed(self):
        """Nothing stale is used after load_state_dict, .data, or another precision."""
        X = rows(12, 5)
        layer = ShiftedReLU(5, 80, dtype=DOUBLE).attach(X)
        layer(rows=range(12))
        layer.load_state_dict(ShiftedReLU(5, 80, seed=5, dtype=DOUBLE).state_dict())
        torch.testing.assert_close(layer(rows=range(12)), Plain(layer)(X), rtol=0, atol=1e-12)
        layer.weight.data = torch.randn(80, 5, dtype=DOUBLE, generator=GENERATOR)
        torch.testing.assert_close(layer(rows=range(12)), Plain(layer)(X), rtol=0, atol=1e-12)
        layer.threshold = 0.1
        torch.testing.assert_close(layer(rows=range(12)), Plain(layer)(X), rtol=0, atol=1e-12)
        layer.float()
        torch.testing.assert_close(layer(rows=range(12)), Plain(layer)(X.float()), rtol=0, atol=1e-5)


class TestMistakes:
    layer = ShiftedReLU(5, 80).attach(rows(6, 5, torch.float32))

    @pytest.mark.parametrize(
        ("call", "message"),
        [
            (lambda layer: layer(), "give either x, or rows"),
            (lambda layer: layer(torch.zeros(2, 5), rows=[0]), "give either x, or rows"),
            (lambda layer: layer(torch.zeros(2, 4)), r"x must have 5 columns, got shape \(2, 4\)"),
            (lambda layer: layer(torch.zeros(2, 5, dtype=DOUBLE)), r"x is torch.float64 and the layer torch.float32"),
            (lambda layer: layer(np.zeros((2, 5))), "x must be a tensor, got ndarray"),
            (lambda layer: layer(torch.full((2, 5), torch.nan)), "x must be finite"),
            (lambda layer: layer(rows=[0, 6]), "rows must be from 0 to 5, got 6"),
            (lambda layer: layer(rows=[-1]), "rows must be from 0 to 5, got -1"),
            (lambda layer: layer(rows=[0.5]), "rows must be whole numbers, got float64"),
            (lambda layer: layer(rows=np.ones(3, bool)), r"a mask of rows must have shape \(6,\), got \(3,\)"),
            (lambda layer: layer.attach(torch.zeros(5)), r"X must have shape \(n, 5\), got \(5,\)"),
            (lambda layer: layer.attach(torch.full((1, 5), torch.nan)), "X must be finite"),
            (lambda _: ShiftedReLU(5, 80)(rows=[0]), r"call attach\(X\) first"),
            (lambda _: ShiftedReLU(5, 80, dtype=torch.float16), "dtype must be torch.float32 or torch.float64"),
            (lambda _: ShiftedReLU(5, 80).half()(torch.zeros(1, 5).half()), r"use layer.float\(\)"),
            (lambda _: ShiftedReLU(5, 80).to("meta")(torch.zeros(1, 5)), "runs on the CPU"),
        ],
    )
    def test_are_told(self, call, message):
        with pytest.raises(InputError, match=message):
            call(self.layer)

    def test_a_table_that_changed(self):
        X = rows(6, 5, torch.float32)
        layer = ShiftedReLU(5, 80).attach(X)
        layer(rows=[1])
        X[1] += 0.5
        with pytest.raises(InputError, match=r"the attached X has changed; call attach\(X\) again"):
            layer(rows=[0, 1])
        layer(rows=[0])

    def test_lists_that_lie(self):
        """If something is wrong with the lists themselves, an audit says so before long."""
        layer = ShiftedReLU(5, 80, threshold=0.0).attach(rows(6, 5, torch.float32))
        layer(rows=range(6))
        lists_of(layer)._lists.cuts[:] = 0

        def go_on():
            for _ in range(80):
                layer(rows=range(6))

        with pytest.raises(CertificateError, match="Attach it again"):
            go_on()

    def test_weights_changed_before_backward(self):
        """PyTorch's own refusal."""
        loss = self.layer(rows=[0, 1]).sum()
        with torch.no_grad():
            self.layer.weight += 1.0
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()

    def test_weights_that_are_not_finite(self):
        """Outputs that are not numbers, as from the plain implementation."""
        layer = ShiftedReLU(5, 80).attach(rows(6, 5, torch.float32))
        layer(rows=[0])
        with torch.no_grad():
            layer.weight[3] = torch.nan
        assert layer(rows=[0, 1]).isnan().all()
        assert layer(rows(2, 5, torch.float32)).isnan().all()


def test_rows_by_number():
    """Lists, tensors of any shape, slices, masks."""
    layer = ShiftedReLU(5, 80).attach(rows(6, 5, torch.float32))
    expected = layer(table_of(layer))
    for index in ([4, 0], torch.tensor([[4, 0], [1, 1]]), slice(1, 5), np.arange(6) % 2 == 0, 3):
        torch.testing.assert_close(layer(rows=index), expected[index], rtol=0, atol=1e-6)
    assert layer.release()._attached is None
    assert "threshold=" in repr(layer)


def test_without_pytorch_the_remedy_is_told():
    code = "import sys\nsys.modules['torch'] = None\ntry:\n import fireset.nn\nexcept ImportError as e: print(e)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told == "fireset.nn needs PyTorch, which is missing; install it with pip install 'fireset[torch]'\n"
