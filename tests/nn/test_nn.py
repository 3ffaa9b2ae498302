"""The layer for PyTorch: outputs, gradients and training runs equal those of a plain implementation."""

import copy
import io
import pickle
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from threadpoolctl import threadpool_info

torch = pytest.importorskip("torch")

from fireset import InputError, ShiftedReLUNetwork, train  # noqa: E402
from fireset._util.errors import CertificateError  # noqa: E402
from fireset.engines import batch_pairs, row_lists  # noqa: E402
from fireset.engines.row_lists import RowLists  # noqa: E402
from fireset.nn import ShiftedReLU  # noqa: E402

nn, functional = torch.nn, torch.nn.functional
DOUBLE = torch.float64
GENERATOR = torch.Generator().manual_seed(3)


def rows(n: int, d: int, dtype=DOUBLE, generator=GENERATOR):
    return functional.normalize(torch.randn(n, d, dtype=dtype, generator=generator))


def table_of(layer: ShiftedReLU):
    assert layer._attached is not None
    return layer._attached.X


def lists_of(layer: ShiftedReLU) -> RowLists:
    assert layer._attached is not None
    assert layer._attached._lists is not None
    return layer._attached._lists


class Plain(nn.Module):
    """The function of the layer with ``torch.nn.Linear``."""

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
    @pytest.mark.sweep(every=8)
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
        dense = ShiftedReLU(6, 300, 2, threshold=1.5, seed=0, dtype=DOUBLE)
        sparse = ShiftedReLU(6, 300, 2, threshold=1.5, sparse=True, seed=0, dtype=DOUBLE)
        x = rows(3, 6)
        for layer in (dense, sparse):
            layer(x).square().sum().backward()
        found = sparse.weight.grad
        assert found is not None
        assert found.is_sparse
        assert 0 < found._nnz() < 300
        torch.testing.assert_close(found.to_dense(), dense.weight.grad, rtol=0, atol=0)

    def test_two_passes_before_one_backward(self):
        """Each pass keeps its own active pairs."""
        layer = ShiftedReLU(6, 300, dtype=DOUBLE, threshold=1.0).attach(rows(20, 6))
        plain = Plain(layer)
        X = table_of(layer)
        first, second = layer(rows=[0, 1, 2]), layer(rows=range(5, 20))
        (first.sum() * second.sum()).backward()
        (plain(X[:3]).sum() * plain(X[5:]).sum()).backward()
        torch.testing.assert_close(layer.weight.grad, plain.hidden.weight.grad, rtol=0, atol=1e-10)


class TestSecondDerivatives:
    """Gradient penalties and Hessian-vector products equal those of the plain implementation."""

    @staticmethod
    def penalty(f, x, parameters):
        """Return the derivatives of |∂f/∂x|² by the parameters and x."""
        gradient = torch.autograd.grad(f(x).sum(), x, create_graph=True)[0]
        return torch.autograd.grad(gradient.square().sum(), [*parameters, x], allow_unused=True)

    @pytest.mark.parametrize("trained", [False, True])
    def test_gradient_penalty_of_a_linear_functional(self, trained):
        """∂L/∂f is constant, so that the second derivative comes from the layer alone."""
        layer = ShiftedReLU(5, 300, 2, threshold=0.6, trained_outputs=trained, seed=2, dtype=DOUBLE)
        plain = Plain(layer)
        x = torch.randn(7, 5, dtype=DOUBLE, generator=GENERATOR, requires_grad=True)
        found = self.penalty(layer, x, list(layer.parameters()))
        expected = self.penalty(plain, x, [p for p in plain.parameters() if p.requires_grad])
        torch.testing.assert_close(found[0], expected[0], rtol=0, atol=1e-12)
        assert found[0].abs().max() > 0.01
        if trained:
            torch.testing.assert_close(found[1], expected[1].T, rtol=0, atol=1e-12)
        assert found[-1] is None or not found[-1].any()  # piecewise linear in x

    def test_penalised_training_step_by_backward(self):
        """``loss.backward()`` with the penalty inside, as in a training loop."""
        layer = ShiftedReLU(4, 200, threshold=0.5, seed=1, dtype=DOUBLE)
        plain = Plain(layer)
        x = torch.randn(6, 4, dtype=DOUBLE, generator=GENERATOR, requires_grad=True)
        for model in (layer, plain):
            out = model(x)
            slope = torch.autograd.grad(out.sum(), x, create_graph=True)[0]
            (out.square().mean() + (slope.norm(dim=1) - 1).square().mean()).backward()
        torch.testing.assert_close(layer.weight.grad, plain.hidden.weight.grad, rtol=0, atol=1e-12)

    @pytest.mark.sweep(every=6)
    @pytest.mark.parametrize(("features", "outputs"), [(1, 1), (5, 1), (9, 3)])
    @pytest.mark.parametrize("trained", [False, True])
    def test_gradgradcheck(self, features, outputs, trained):
        layer = ShiftedReLU(features, 30, outputs, threshold=0.4, trained_outputs=trained, seed=3, dtype=DOUBLE)
        x = torch.randn(4, features, dtype=DOUBLE, generator=GENERATOR, requires_grad=True)

        def function(x, *parameters):
            names = [name for name, _ in layer.named_parameters()]
            return torch.func.functional_call(layer, dict(zip(names, parameters, strict=True)), (x,))

        assert torch.autograd.gradgradcheck(function, (x, *layer.parameters()))

    def test_hessian_vector_product_of_attached_rows(self):
        layer = ShiftedReLU(5, 60, 2, threshold=0.4, trained_outputs=True, dtype=DOUBLE).attach(rows(9, 5))
        plain = Plain(layer)
        index = [0, 3, 8]
        vectors = [torch.randn(p.shape, dtype=DOUBLE, generator=GENERATOR) for p in layer.parameters()]
        results = []
        for out, parameters, directions in (
            (layer(rows=index), list(layer.parameters()), vectors),
            (plain(table_of(layer)[index]), list(plain.parameters()), [vectors[0], vectors[1].T]),
        ):
            gradients = torch.autograd.grad((out**3).sum(), parameters, create_graph=True)
            product = sum((g * v).sum() for g, v in zip(gradients, directions, strict=True))
            results.append(torch.autograd.grad(product, parameters))
        (for_weight, for_outputs), (expected_weight, expected_outputs) = results
        torch.testing.assert_close(for_weight, expected_weight, rtol=0, atol=1e-12)
        torch.testing.assert_close(for_outputs, expected_outputs.T, rtol=0, atol=1e-12)

    def test_what_is_not_supported_raises(self):
        layer = ShiftedReLU(4, 50, threshold=0.5)
        x = torch.randn(3, 4, requires_grad=True)
        slope = torch.autograd.grad(layer(x).sum(), x, create_graph=True)[0]
        with pytest.raises(InputError, match="to_dense"):
            slope.square().sum().backward(create_graph=True)
        sparse = ShiftedReLU(4, 50, threshold=0.5, sparse=True)
        with pytest.raises(InputError, match="sparse=False"):
            torch.autograd.grad(sparse(x).sum(), x, create_graph=True)


class TestInitialization:
    def test_follows_the_generator_of_torch(self):
        torch.manual_seed(5)
        first, second = ShiftedReLU(4, 50), ShiftedReLU(4, 50)
        torch.manual_seed(5)
        again = ShiftedReLU(4, 50)
        assert torch.equal(first.weight, again.weight)
        assert torch.equal(first.outputs, again.outputs)
        assert not torch.equal(first.weight, second.weight)
        assert not torch.equal(first.outputs, second.outputs)

    def test_a_seed_is_independent_of_it(self):
        before = torch.random.get_rng_state()
        first, second = ShiftedReLU(4, 50, seed=7), ShiftedReLU(4, 50, seed=7)
        assert torch.equal(first.weight, second.weight)
        assert torch.equal(before, torch.random.get_rng_state())

    @pytest.mark.parametrize("start", ["paper", "antisymmetric"])
    def test_reset_parameters(self, start):
        layer = ShiftedReLU(4, 50, 2, threshold=0.3, trained_outputs=True, start=start, seed=1)
        weight, first = layer.weight, layer.weight.detach().clone()
        torch.manual_seed(0)
        layer.reset_parameters()
        assert layer.weight is weight
        assert not torch.equal(layer.weight, first)
        assert layer.threshold == ShiftedReLU(4, 50, threshold=0.3).threshold
        layer.reset_parameters(seed=1)
        assert torch.equal(layer.weight, first)
        if start == "antisymmetric":
            torch.testing.assert_close(layer(rows(5, 4, torch.float32)), torch.zeros(5, 2), rtol=0, atol=1e-6)

    def test_device_and_dtype(self):
        assert ShiftedReLU(4, 50, device="cpu").weight.dtype == torch.float32
        assert ShiftedReLU(4, 50, device=torch.device("cpu"), dtype=DOUBLE).outputs.dtype == DOUBLE
        torch.set_default_dtype(DOUBLE)
        try:
            assert ShiftedReLU(4, 50).weight.dtype == DOUBLE
        finally:
            torch.set_default_dtype(torch.float32)
        for device in ("meta", "cuda", torch.device("cuda:1")):
            with pytest.raises(InputError, match="to_dense"):
                ShiftedReLU(4, 50, device=device)

    def test_moving_to_another_device_raises(self):
        layer = ShiftedReLU(4, 50)
        with pytest.raises(InputError, match="to_dense"):
            nn.Sequential(layer).to("meta")
        assert layer.weight.device.type == "cpu"
        layer.to("cpu").double().share_memory()
        assert layer(torch.zeros(1, 4, dtype=DOUBLE)).shape == (1, 1)


class TestPrecision:
    def test_autocast(self):
        torch.manual_seed(0)
        wide = ShiftedReLU(16, 400, 3, threshold=0.5)
        model = nn.Sequential(nn.Linear(4, 16), wide, nn.Linear(3, 2))
        x = torch.randn(8, 4)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            before = model[0](x)
            assert before.dtype == torch.bfloat16
            out = wide(before)
            loss = model(x).float().square().sum()
        assert out.dtype == torch.float32
        torch.testing.assert_close(out, Plain(wide)(before.float()), rtol=0, atol=1e-5)
        loss.backward()
        for p in model.parameters():
            assert p.grad is not None
            assert p.grad.dtype == torch.float32
        with pytest.raises(InputError, match="bfloat16"):  # outside of autocast the mismatch is an error
            wide(before)

    @pytest.mark.parametrize("scale", [1e-30, 1e-22, 1e17, 1e19, 1e25, 1e37, 1e38])
    @pytest.mark.parametrize("attached", [False, True])
    def test_weights_near_the_limits_of_float32(self, scale, attached):
        """Squares of weights overflow from 1e19 on; outputs are those of float64."""
        layer = ShiftedReLU(6, 200, 2, threshold=0.0, seed=4, trained_outputs=True)
        X = rows(9, 6, torch.float32)
        with torch.no_grad():
            layer.weight *= scale / layer.weight.abs().max()
            layer.outputs *= 1e-2
        expected = copy.deepcopy(Plain(layer)).double()
        if attached:
            layer.attach(X)
        for _ in range(2):
            layer.zero_grad()
            expected.zero_grad()
            found = layer(rows=range(9)) if attached else layer(X)
            true = expected(X.double())
            assert found.isfinite().all()
            torch.testing.assert_close(found.double() / scale, true / scale, rtol=0, atol=1e-6)
            found.sum().backward()
            true.sum().backward()
            assert layer.weight.grad is not None
            assert layer.outputs.grad is not None
            torch.testing.assert_close(layer.weight.grad.double(), expected.hidden.weight.grad, rtol=0, atol=1e-6)
            gradient = layer.outputs.grad.double() / scale
            torch.testing.assert_close(gradient, expected.out.weight.grad.T / scale, rtol=0, atol=1e-5)
            with torch.no_grad():
                layer.weight[3] *= -0.5
                expected.hidden.weight[3] *= -0.5

    def test_float64_weights_whose_squares_overflow(self):
        layer = ShiftedReLU(6, 200, threshold=0.0, seed=4, dtype=DOUBLE)
        X = rows(9, 6)
        expected = Plain(layer)(X)
        with torch.no_grad():
            layer.weight *= 1e200
        torch.testing.assert_close(layer(X) / 1e200, expected, rtol=0, atol=1e-12)
        torch.testing.assert_close(layer.attach(X)(rows=range(9)) / 1e200, expected, rtol=0, atol=1e-12)


class TestDense:
    @pytest.mark.parametrize("trained", [False, True])
    def test_is_the_same_function_with_its_own_parameters(self, trained):
        layer = ShiftedReLU(5, 300, 2, 0.7, trained_outputs=trained, output_scale=3.0, dtype=DOUBLE)
        dense = layer.eval().to_dense()
        assert type(dense) is nn.Sequential
        assert [type(module) for module in dense] == [nn.Linear, nn.ReLU, nn.Linear]
        assert not dense.training
        x = rows(6, 5).requires_grad_()
        torch.testing.assert_close(dense(x), layer(x), rtol=0, atol=1e-12)
        found, expected = (torch.autograd.grad(f(x).square().sum(), x)[0] for f in (dense, layer))
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
        assert [p.requires_grad for p in dense.parameters()] == [True, False, trained]
        before = layer(x).detach()
        with torch.no_grad():
            for p in dense.parameters():
                p.add_(1.0)
        assert torch.equal(layer(x), before)

    def test_third_derivatives_export_and_func(self):
        layer = ShiftedReLU(3, 40, threshold=0.2, seed=0, dtype=DOUBLE)
        dense = layer.to_dense()
        x = rows(4, 3).requires_grad_()
        assert torch.autograd.gradgradcheck(lambda x: dense(torch.sin(x)), (x,))
        jacobian = torch.func.vmap(torch.func.jacrev(dense))(x.detach())
        expected = torch.autograd.functional.jacobian(lambda x: layer(x).sum(0), x)
        torch.testing.assert_close(jacobian[:, 0], expected[0], rtol=0, atol=1e-12)
        program = torch.export.export(dense, (x.detach(),))
        torch.testing.assert_close(program.module()(x.detach()), layer(x).detach(), rtol=0, atol=1e-12)
        with pytest.raises(InputError, match="to_dense"):
            torch.export.export(layer, (x.detach(),))
        assert dense.to("meta")(x.detach().to("meta")).shape == (4, 1)

    def test_onnx(self, tmp_path):
        onnxruntime = pytest.importorskip("onnxruntime")
        pytest.importorskip("onnx")
        layer = ShiftedReLU(3, 40, 2, threshold=0.2)
        x = rows(4, 3, torch.float32)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(layer.to_dense(), (x,), tmp_path / "layer.onnx", dynamo=False, input_names=["x"])
        session = onnxruntime.InferenceSession(tmp_path / "layer.onnx", providers=["CPUExecutionProvider"])
        found = session.run(None, {"x": x.numpy()})[0]
        np.testing.assert_allclose(found, layer(x).detach().numpy(), rtol=0, atol=1e-5)


def test_compiled_models_run_the_layer_between_graphs():
    """Results and gradients equal those of the model; ``fullgraph=True`` raises PyTorch's own error."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), ShiftedReLU(8, 200, 3, threshold=0.5), nn.Tanh())
    x = torch.randn(6, 4)
    compiled = torch.compile(model, backend="eager")
    for batch in (x, x[:3], x):
        assert torch.equal(compiled(batch), model(batch))
    compiled(x).sum().backward()
    assert model[0].weight.grad.abs().sum() > 0
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(model, backend="eager", fullgraph=True)(x)
    dense = nn.Sequential(model[0], model[1].to_dense(), model[2])
    compiled = torch.compile(dense, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), model(x), rtol=0, atol=1e-5)
    torch._dynamo.reset()


class TestThreads:
    def test_an_attached_layer_used_by_several(self):
        """Every output is correct, during and after concurrent passes."""
        X = rows(60, 6)
        for trial in range(6):
            layer = ShiftedReLU(6, 400, threshold=0.8, seed=trial, dtype=DOUBLE).attach(X)
            expected = Plain(layer)(X).detach()

            def use(seed, layer=layer, expected=expected):
                order = np.random.default_rng(seed)
                for _ in range(15):
                    index = order.permutation(60)[:20]
                    with torch.no_grad():
                        torch.testing.assert_close(layer(rows=index), expected[index], rtol=0, atol=1e-11)

            with ThreadPoolExecutor(6) as pool:
                list(pool.map(use, range(6)))
            with torch.no_grad():
                torch.testing.assert_close(layer(rows=range(60)), expected, rtol=0, atol=1e-11)
            assert lists_of(layer).rebuilds == 1
            assert lists_of(layer).n_listed == 60

    def test_copies_have_locks_of_their_own(self):
        layer = ShiftedReLU(6, 100, seed=0).attach(rows(10, 6, torch.float32))
        layer(rows=[0])
        assert layer._attached is not None
        with layer._attached._lock:  # a copy taken during a pass
            copies = [copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))]
            found = [each(rows=range(10)) for each in copies]
        for each in found:
            torch.testing.assert_close(each, layer(rows=range(10)), rtol=0, atol=0)


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.5),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.2, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "lbfgs": lambda p: torch.optim.LBFGS(p, lr=0.3, max_iter=4, history_size=5),
}


@pytest.mark.sweep(every=6)
@pytest.mark.parametrize("attached", [False, True])
@pytest.mark.parametrize(
    ("optimizer", "batch"),
    [(name, batch) for name in OPTIMIZERS for batch in (None, 16) if name != "lbfgs" or not batch],
)
def test_a_hundred_steps(optimizer, batch, attached):
    """The weights of a plain implementation to 1e-9, under every optimizer.

    The rows have a seed of their own: L-BFGS amplifies rounding, by far more than 1e-9 for about one seed in 40, so
    that they must not depend on the tests that ran before.
    """
    X = rows(60, 7, generator=torch.Generator().manual_seed(3))
    y = torch.sin(3 * X[:, :2])
    layer = ShiftedReLU(7, 200, 2, threshold=1.0, trained_outputs=True, seed=1, dtype=DOUBLE)
    plain = Plain(layer)
    if attached:
        layer.attach(X)
    own = OPTIMIZERS[optimizer](list(layer.parameters()))
    reference = OPTIMIZERS[optimizer](list(plain.parameters()))
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

        own.step(closure(own, (lambda k: layer(rows=k)) if attached else (lambda k: layer(X[k]))))
        reference.step(closure(reference, lambda k: plain(X[k])))
    assert (layer.weight - ShiftedReLU(7, 200, 2, threshold=1.0, seed=1, dtype=DOUBLE).weight).abs().max() > 0.05
    assert_same_parameters(layer, plain)


def test_lists_are_rebuilt_as_weights_move():
    """After large steps the lists are rebuilt, and no pair is missed."""
    X = rows(50, 6)
    layer = ShiftedReLU(6, 500, threshold=1.0, dtype=DOUBLE).attach(X)
    generator = torch.Generator().manual_seed(0)
    for _ in range(40):
        with torch.no_grad():
            layer.weight += 0.05 * torch.randn(layer.weight.shape, dtype=DOUBLE, generator=generator)
        torch.testing.assert_close(layer(rows=range(50)), Plain(layer)(X), rtol=0, atol=1e-12)
    assert lists_of(layer).rebuilds > 3
    with torch.no_grad():  # one neuron moves far: it is tested for all rows, and the lists are kept
        before = lists_of(layer).rebuilds
        layer.weight[7] *= 30.0
    torch.testing.assert_close(layer(rows=range(50)), Plain(layer)(X), rtol=0, atol=1e-11)
    assert lists_of(layer).rebuilds == before


@pytest.mark.parametrize("features", [5, 64, 512, 784])
def test_references_are_copies(features):
    """Lists refer to copies of weights and rows, also if long rows need no aligned copy."""
    X = rows(12, features, torch.float32)
    layer = ShiftedReLU(features, 300, threshold=1.0).attach(X)
    layer(rows=range(12))
    with torch.no_grad():
        layer.weight.copy_(torch.randn(layer.weight.shape, generator=GENERATOR))
    torch.testing.assert_close(layer(rows=range(12)), Plain(layer)(X), rtol=0, atol=1e-5)
    assert lists_of(layer).rebuilds == 2
    X[3] *= 1.5
    with pytest.raises(InputError, match="attached X has changed"):
        layer(rows=[3])


def test_between_other_layers():
    torch.manual_seed(0)
    wide = ShiftedReLU(8, 400, 5, threshold=1.0, dtype=DOUBLE)
    before, head = nn.Linear(4, 8, dtype=DOUBLE), nn.Linear(5, 3, dtype=DOUBLE)
    model_with_layer = nn.Sequential(before, wide, nn.Tanh(), head)
    reference = nn.Sequential(copy.deepcopy(before), Plain(wide), nn.Tanh(), copy.deepcopy(head))
    x, classes = torch.randn(30, 4, dtype=DOUBLE), torch.arange(30) % 3
    for model in (model_with_layer, reference):
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for _ in range(30):
            optimizer.zero_grad()
            functional.cross_entropy(model(x), classes).backward()
            optimizer.step()
    torch.testing.assert_close(model_with_layer(x), reference(x), rtol=0, atol=1e-9)
    assert functional.cross_entropy(model_with_layer(x), classes) < 0.9


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

    def test_changed_weights_threshold_and_precision(self):
        """Outputs are those of the new weights after load_state_dict, .data, or another precision."""
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


class TestErrors:
    layer = ShiftedReLU(5, 80).attach(rows(6, 5, torch.float32))

    @pytest.mark.parametrize(
        ("call", "message"),
        [
            (lambda layer: layer(), "either x or rows"),
            (lambda layer: layer(torch.zeros(2, 5), rows=[0]), "either x or rows"),
            (lambda layer: layer(torch.zeros(2, 4)), r"x.* 5 .*got shape \(2, 4\)"),
            (lambda layer: layer(torch.zeros(2, 5, dtype=DOUBLE)), "x.*torch.float32.*got torch.float64"),
            (lambda layer: layer(np.zeros((2, 5))), "x.*got ndarray"),
            (lambda layer: layer(torch.full((2, 5), torch.nan)), "x.*finite"),
            (lambda layer: layer(rows=[0, 6]), "rows.* 5, got 6"),
            (lambda layer: layer(rows=[-1]), "rows.* 5, got -1"),
            (lambda layer: layer(rows=[0.5]), "rows.*got float64"),
            (lambda layer: layer(rows=np.ones(3, bool)), r"rows.*\(6,\).*got \(3,\)"),
            (lambda layer: layer.attach(torch.zeros(5)), r"X.*\(n, 5\).*got \(5,\)"),
            (lambda layer: layer.attach(torch.full((1, 5), torch.nan)), "X.*finite"),
            (lambda _: ShiftedReLU(5, 80)(rows=[0]), "rows.*attach"),
            (lambda _: ShiftedReLU(5, 80, dtype=torch.float16), "dtype.*torch.float32.*torch.float64"),
            (lambda _: ShiftedReLU(5, 80).half()(torch.zeros(1, 5).half()), r"use layer.float\(\)"),
            (lambda layer: layer(torch.zeros(1, 5, device="meta")), "'cpu'"),
        ],
    )
    def test_wrong_arguments(self, call, message):
        with pytest.raises(InputError, match=message):
            call(self.layer)

    def test_a_table_that_changed(self):
        X = rows(6, 5, torch.float32)
        layer = ShiftedReLU(5, 80).attach(X)
        layer(rows=[1])
        X[1] += 0.5
        with pytest.raises(InputError, match="attached X has changed"):
            layer(rows=[0, 1])
        layer(rows=[0])

    def test_an_audit_detects_wrong_lists(self):
        layer = ShiftedReLU(5, 80, threshold=0.0).attach(rows(6, 5, torch.float32))
        layer(rows=range(6))
        lists_of(layer)._lists.cuts[:] = 0

        def run_passes():
            for _ in range(80):
                layer(rows=range(6))

        with pytest.raises(CertificateError, match="neuron"):
            run_passes()

    def test_weights_changed_before_backward(self):
        """PyTorch raises its own error."""
        loss = self.layer(rows=[0, 1]).sum()
        with torch.no_grad():
            self.layer.weight += 1.0
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()

    def test_weights_that_are_not_finite(self):
        """Outputs are NaN, as those of the plain implementation."""
        layer = ShiftedReLU(5, 80).attach(rows(6, 5, torch.float32))
        layer(rows=[0])
        with torch.no_grad():
            layer.weight[3] = torch.nan
        assert layer(rows=[0, 1]).isnan().all()
        assert layer(rows(2, 5, torch.float32)).isnan().all()


def test_rows_by_number():
    """Rows as lists, tensors of any shape, slices and masks."""
    layer = ShiftedReLU(5, 80).attach(rows(6, 5, torch.float32))
    expected = layer(table_of(layer))
    for index in ([4, 0], torch.tensor([[4, 0], [1, 1]]), slice(1, 5), np.arange(6) % 2 == 0, 3):
        torch.testing.assert_close(layer(rows=index), expected[index], rtol=0, atol=1e-6)
    assert layer.release()._attached is None
    assert "threshold=" in repr(layer)


def test_without_pytorch_the_error_names_the_extra():
    code = "import sys\nsys.modules['torch'] = None\ntry:\n import fireset.nn\nexcept ImportError as e: print(e)"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "pip install 'fireset[torch]'" in printed


@pytest.mark.usefixtures("two_blas_threads")
@pytest.mark.parametrize("attached", [True, False])
def test_a_pass_leaves_no_blas_thread_spinning(attached, monkeypatch):
    """BLAS uses one thread during a pass: others would keep spinning on cores that the optimizer needs."""
    threads = []
    evaluate = batch_pairs.evaluate_candidates

    def record(*arguments):
        threads.extend(library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas")
        return evaluate(*arguments)

    for module in (batch_pairs, row_lists):
        monkeypatch.setattr(module, "evaluate_candidates", record)
    x = nn.functional.normalize(torch.randn(6, 3))
    layer = ShiftedReLU(3, 50)
    predicted = layer.attach(x)(rows=range(6)) if attached else layer(x)
    predicted.sum().backward()
    assert threads
    assert set(threads) == {1}
