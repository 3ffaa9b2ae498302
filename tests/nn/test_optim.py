"""``fireset.nn.optim.Adam``: weights, moments and states are those of ``torch.optim.Adam``."""

import copy
import gc
import io
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from fireset import InputError, ShiftedReLUNetwork  # noqa: E402
from fireset.engines.batch_pairs import find_active_pairs, kernel_neurons  # noqa: E402
from fireset.kernels.adam import adam_blocks, adam_rows  # noqa: E402
from fireset.nn import ShiftedReLU  # noqa: E402
from fireset.nn.deferred import deferred_gradient  # noqa: E402
from fireset.nn.optim import Adam  # noqa: E402

nn = torch.nn
DOUBLE = torch.float64
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5}


def rows(n: int, d: int, dtype=DOUBLE, seed: int = 3):
    return nn.functional.normalize(torch.randn(n, d, dtype=dtype, generator=torch.Generator().manual_seed(seed)))


def a_layer(d: int = 7, width: int = 200, outputs: int = 2, **options) -> ShiftedReLU:
    return ShiftedReLU(d, width, outputs, **{"threshold": 1.6, "seed": 1, "dtype": DOUBLE, **options})


def step(layer, optimizer, X, y, index, attached: bool = True) -> None:
    optimizer.zero_grad()
    predicted = layer(rows=index) if attached else layer(X[index])
    (predicted - y[index]).square().sum().backward()
    optimizer.step()


def assert_same(ours: nn.Module, theirs: nn.Module, atol: float = 1e-12) -> None:
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=atol)


def assert_same_states(ours, theirs, atol: float = 1e-12) -> None:
    one, other = ours.state_dict()["state"], theirs.state_dict()["state"]
    assert list(one) == list(other)
    for key in one:
        assert list(one[key]) == list(other[key]) == ["step", "exp_avg", "exp_avg_sq"]
        for name in one[key]:
            torch.testing.assert_close(one[key][name], other[key][name], rtol=0, atol=atol)


@pytest.mark.sweep(every=5)
@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@pytest.mark.parametrize("attached", [False, True])
@pytest.mark.parametrize("trained_outputs", [False, True])
@pytest.mark.parametrize("d", [7, 16])
def test_equal_to_torch(dtype, attached, trained_outputs, d):
    """Batches of a few rows: most neurons have no gradient in a step, and move by their momentum."""
    X = rows(60, d, dtype)
    y = torch.sin(3 * X[:, :2])
    layers = [a_layer(d, dtype=dtype, trained_outputs=trained_outputs) for _ in range(2)]
    optimizers = [Adam(layers[0].parameters(), lr=0.01), torch.optim.Adam(layers[1].parameters(), lr=0.01)]
    rng = np.random.default_rng(0)
    for layer in layers if attached else []:
        layer.attach(X)
    for _ in range(60):
        index = rng.permutation(60)[:6]
        for layer, optimizer in zip(layers, optimizers, strict=True):
            step(layer, optimizer, X, y, index, attached)
        assert layers[0].weight.grad is None
    assert_same(*layers, atol=TOLERANCE[dtype])
    assert_same_states(*optimizers, atol=TOLERANCE[dtype])


def test_neurons_without_gradient_move_by_their_momentum():
    X = rows(20, 6)
    layer, other = (a_layer(6, outputs=1).attach(X) for _ in range(2))
    ours, theirs = Adam(layer.parameters(), lr=0.01), torch.optim.Adam(other.parameters(), lr=0.01)
    y = torch.ones(20, 1, dtype=DOUBLE)
    for one, optimizer in ((layer, ours), (other, theirs)):
        step(one, optimizer, X, y, [0])
    moved = (layer.weight != a_layer(6, outputs=1).weight).any(dim=1)
    assert 0 < moved.sum() < 100
    before = layer.weight.detach().clone()
    silent = moved & ~(X[1] @ layer.weight.T > layer.threshold)  # without gradient in the next step
    assert silent.any()
    for one, optimizer in ((layer, ours), (other, theirs)):
        step(one, optimizer, X, y, [1])
    assert (layer.weight != before)[silent].any(dim=1).all()
    assert_same(layer, other)
    never = (other.weight == a_layer(6, outputs=1).weight).all(dim=1)
    assert never.any()
    assert torch.equal(layer.weight[never], a_layer(6, outputs=1).weight[never])  # their bits


def test_fire_sets_follow_large_steps():
    """Steps beyond the radius of the lists: every pass has the active pairs of all current weights."""
    X = rows(50, 6)
    layer = a_layer(6, outputs=1).attach(X)
    optimizer = Adam(layer.parameters(), lr=0.05)
    rng = np.random.default_rng(0)
    for _ in range(40):
        step(layer, optimizer, X, torch.sin(3 * X[:, :1]), rng.permutation(50)[:10])
        torch.testing.assert_close(layer(rows=range(50)), layer.to_dense()(X), rtol=0, atol=1e-12)
    table = layer._attached
    assert table is not None
    assert table._lists is not None
    assert table._lists.rebuilds > 1


class TwoLayers(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(5, 7, dtype=DOUBLE)
        self.wide = a_layer(7, outputs=3, trained_outputs=True, threshold=0.5)
        self.second = a_layer(3, width=50, outputs=1, threshold=0.2)

    def forward(self, x):
        return self.second(self.wide(torch.tanh(self.first(x))))


def a_model() -> TwoLayers:
    torch.manual_seed(0)
    return TwoLayers()


def groups_of(model: TwoLayers) -> list[dict]:
    return [
        {"params": model.first.parameters(), "lr": 0.02, "betas": (0.8, 0.9)},
        {"params": [model.wide.weight]},
        {"params": [model.wide.outputs, model.second.weight], "eps": 1e-3},
    ]


def test_several_groups_and_layers():
    """The second layer needs gradients of its input, the first one of its output weights."""
    X = rows(30, 5)
    models = [a_model(), a_model()]
    optimizers = [Adam(groups_of(models[0]), lr=0.01), torch.optim.Adam(groups_of(models[1]), lr=0.01)]
    for _ in range(30):
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad()
            model(X).square().sum().backward()
            optimizer.step()
    assert_same(*models, atol=1e-11)
    assert_same_states(*optimizers, atol=1e-11)


def test_schedules_and_closures():
    X = rows(30, 7)
    y = torch.sin(3 * X[:, :2])
    layers = [a_layer(), a_layer()]
    optimizers = [Adam(layers[0].parameters(), lr=0.1), torch.optim.Adam(layers[1].parameters(), lr=0.1)]
    for layer, optimizer in zip(layers, optimizers, strict=True):
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        for _ in range(10):

            def closure(layer=layer, optimizer=optimizer):
                optimizer.zero_grad()
                loss = (layer(X) - y).square().sum()
                loss.backward()
                return loss

            assert optimizer.step(closure).item() > 0
            schedule.step()
    assert_same(*layers)


@pytest.mark.filterwarnings("ignore:Using backward")
def test_accumulated_gradients():
    """Two backward passes before a step, one of them with ``create_graph``, which makes a dense gradient."""
    X = rows(30, 7)
    layers = [a_layer(), a_layer()]
    optimizers = [Adam(layers[0].parameters(), lr=0.1), torch.optim.Adam(layers[1].parameters(), lr=0.1)]
    for create_graph in (False, True, False):
        for layer, optimizer in zip(layers, optimizers, strict=True):
            optimizer.zero_grad()
            layer(X[:20]).square().sum().backward()
            layer(X[10:]).sum().backward(create_graph=create_graph)
            optimizer.step()
    assert_same(*layers)
    assert_same_states(*optimizers)


def test_zero_grad_discards_stored_terms():
    X = rows(30, 7)
    layer = a_layer()
    optimizer = Adam(layer.parameters(), lr=0.1)
    layer(X).sum().backward()
    optimizer.zero_grad()
    before = layer.weight.detach().clone()
    optimizer.step()
    assert torch.equal(layer.weight, before)
    assert not optimizer.state


def test_later_changes_of_rows_and_outputs_do_not_matter():
    """Between the backward pass and the step; 512 columns are long enough for rows to be used without a copy."""
    X = rows(10, 512, torch.float32)
    layers = [a_layer(512, 100, trained_outputs=True, dtype=torch.float32, threshold=0.5) for _ in range(2)]
    optimizers = [Adam(layers[0].parameters(), lr=0.1), torch.optim.Adam(layers[1].parameters(), lr=0.1)]
    for layer, optimizer in zip(layers, optimizers, strict=True):
        given_rows = X.clone()
        layer(given_rows).square().sum().backward()
        given_rows.zero_()
        with torch.no_grad():
            layer.outputs.mul_(-1.0)
        optimizer.step()
    assert_same(*layers, atol=2e-5)


@pytest.mark.parametrize("names", ["ours, torch", "torch, ours", "ours, ours"])
def test_states_are_exchanged(names):
    """A run that is saved after 5 steps and continued with either optimizer."""
    kinds = {"ours": Adam, "torch": torch.optim.Adam}
    X = rows(30, 7)
    y = torch.sin(3 * X[:, :2])
    whole = a_layer(trained_outputs=True)
    optimizer = torch.optim.Adam(whole.parameters(), lr=0.03)
    for k in range(12):
        step(whole, optimizer, X, y, [k, k + 1, k + 2], attached=False)
    layer = a_layer(trained_outputs=True)
    first, second = (kinds[name] for name in names.split(", "))
    optimizer = first(layer.parameters(), lr=0.03)
    for k in range(5):
        step(layer, optimizer, X, y, [k, k + 1, k + 2], attached=False)
    file = io.BytesIO()
    torch.save({"layer": layer.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file)
    again = a_layer(trained_outputs=True)
    again.load_state_dict(saved["layer"])
    optimizer = second(again.parameters(), lr=1.0)
    optimizer.load_state_dict(saved["optimizer"])
    for k in range(5, 12):
        step(again, optimizer, X, y, [k, k + 1, k + 2], attached=False)
    assert_same(again, whole)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
def test_copies_continue(copied):
    X = rows(30, 7)
    y = torch.sin(3 * X[:, :2])
    layer = a_layer()
    optimizer = Adam(layer.parameters(), lr=0.03)
    step(layer, optimizer, X, y, [0, 1], attached=False)
    other, other_optimizer = copied((layer, optimizer))
    for one, its_optimizer in ((layer, optimizer), (other, other_optimizer)):
        step(one, its_optimizer, X, y, [2, 3], attached=False)
        assert one.weight.grad is None
    assert_same(layer, other)


def test_other_optimizers_work_once_this_one_is_gone():
    X = rows(30, 7)
    layer = a_layer()
    optimizer = Adam(layer.parameters())
    assert deferred_gradient(layer.weight) is not None
    del optimizer
    gc.collect()
    assert deferred_gradient(layer.weight) is None
    layer(X).sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.abs().sum() > 0


def test_changes_in_place_are_seen_by_autograd():
    X = rows(30, 7)
    layer = a_layer()
    optimizer = Adam(layer.parameters())
    loss = layer(X).sum()
    loss.backward(retain_graph=True)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_not_finite_rows_are_visible():
    """Weights that are not finite: as with PyTorch, every weight of an active neuron becomes NaN."""
    layer = a_layer()
    optimizer = Adam(layer.parameters())
    with torch.no_grad():
        layer.weight[3] = torch.nan
    layer(rows(5, 7)).sum().backward()
    optimizer.step()
    assert layer.weight[3].isnan().all()


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"lr": -1.0}, "lr"),
        ({"lr": float("nan")}, "lr"),
        ({"betas": (0.9, 1.0)}, "betas"),
        ({"betas": (-0.1, 0.9)}, "betas"),
        ({"eps": 0.0}, "eps"),
    ],
)
def test_values_out_of_range(options, name):
    with pytest.raises(InputError, match=rf"`{name}`.*got"):
        Adam(a_layer().parameters(), **options)


@pytest.mark.parametrize("options", [{"weight_decay": 0.1}, {"amsgrad": True}, {"maximize": True}])
def test_options_of_torch_that_are_not_supported(options):
    layer = a_layer()
    with pytest.raises(InputError, match=r"torch\.optim\.Adam"):
        Adam([{"params": layer.parameters(), **options}])
    other = torch.optim.Adam(layer.parameters(), **options)
    with pytest.raises(InputError, match=r"torch\.optim\.Adam"):
        Adam(layer.parameters()).load_state_dict(other.state_dict())


def test_sparse_gradients_of_other_parameters_are_refused():
    embedding = nn.Embedding(5, 3, sparse=True)
    optimizer = Adam(embedding.parameters())
    embedding(torch.tensor([1])).sum().backward()
    with pytest.raises(InputError, match="SparseAdam"):
        optimizer.step()


def adam_in_numpy(W, means, squares, gradient, rule):
    one_minus_beta1, beta2, one_minus_beta2, rate, root_factor, eps = rule
    means = means + one_minus_beta1 * (gradient - means)
    squares = beta2 * squares + one_minus_beta2 * gradient**2
    return W - rate * means / (np.sqrt(squares) * root_factor + eps), means, squares


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 12), st.integers(2, 70), st.integers(1, 3), st.integers(1, 20), st.floats(-0.5, 1.5), st.data())
def test_kernels_equal_numpy(d, width, outputs, n, threshold, data):
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    network = ShiftedReLUNetwork.initialize(width, d, outputs, threshold=threshold, dtype="float64", seed=0)
    X, residual = rng.standard_normal((n, d)), rng.standard_normal((n, outputs))
    neurons = kernel_neurons(network.weights, network.output_weights, network.threshold)
    _, active = find_active_pairs(neurons, X)
    gradients = active.weight_gradients(network.output_weights, residual, width)
    moving = (rng.random(width) < 0.3).astype(np.uint8)
    means, squares = rng.standard_normal((width, d)) * moving[:, None], rng.random((width, d)) * moving[:, None]
    rule = (0.1, 0.99, 0.01, 0.03, 1.7, 1e-6)
    expected = adam_in_numpy(network.weights, means, squares, gradients[:, :d], rule)
    fused, plain = ([network.weights.copy(), means.copy(), squares.copy(), moving.copy()] for _ in range(2))
    for span, part in active.parts:
        adam_blocks(*fused, active.batch, network.output_weights, residual, part, active.block, rule, *span)
    adam_rows(*plain, gradients, rule, 0, width)
    for found in (fused, plain):
        for one, other in zip(found, expected, strict=False):
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-13)
    assert set(np.flatnonzero(fused[3])) == {*np.flatnonzero(moving), *active.active_neurons(width)}
