"""The tangent kernels of both layers as Chebyshev series: against quadrature, sampling and finite differences."""

from math import inf

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import ndtr

from fireset._util.gaussian import density
from fireset.theory.kernel_function import KernelFunction

THRESHOLDS = [-1.0, 0.0, 0.5, 1.5, 2.1, 4.0]


def expected_product(b: float, rho: float) -> float:
    """E[σ_b(Z₁) σ_b(Z₂)] by quadrature over Z₁; given Z₁ = z, Z₂ is normal with mean ρz and variance 1 − ρ²."""
    s = np.sqrt(1 - rho * rho)

    def integrand(z):
        t = (rho * z - b) / s if s else np.inf * np.sign(rho * z - b)
        inner = (rho * z - b) * ndtr(t) + s * np.exp(-t * t / 2) / np.sqrt(2 * np.pi) if s else max(rho * z - b, 0.0)
        return (z - b) * inner * density(z)

    return quad(integrand, b, b + 12, epsabs=1e-15, epsrel=1e-11, limit=200)[0]


@pytest.mark.parametrize("threshold", THRESHOLDS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_output_layer_is_the_expected_product_of_activations(threshold, dtype):
    rho = np.array([-1.0, -0.9, -0.4, 0.0, 0.3, 0.8, 0.95, 0.999, 1.0])
    exact = np.array([expected_product(threshold, r) for r in rho])
    found = KernelFunction(threshold, inf).values(rho[None].astype(dtype))[0]
    assert np.abs(found - exact).max() <= 1e-5 * exact[-1]
    assert KernelFunction(threshold, output_scale=inf).at_one == pytest.approx(
        (1 + threshold**2) * ndtr(-threshold) - threshold * density(threshold), rel=1e-5
    )


@pytest.mark.parametrize("scale", [0.3, 3.0])
def test_both_layers_add(scale):
    cosines = np.linspace(-1, 1, 64).reshape(2, 32)
    first, output, both = KernelFunction(1.5), KernelFunction(1.5, inf), KernelFunction(1.5, output_scale=scale)
    expected = first.values(cosines.copy()) + scale**2 * output.values(cosines.copy())
    np.testing.assert_allclose(both.values(cosines.copy()), expected, rtol=0, atol=1e-12)
    assert both.at_one == pytest.approx(first.at_one + scale**2 * output.at_one)
    assert KernelFunction(1.5, 0.0).at_one == first.at_one


@pytest.mark.parametrize("threshold", [1.0, 1.5, 2.1])
@pytest.mark.parametrize("scale", [1.0, inf])
def test_slopes_are_derivatives(threshold, scale):
    kernel = KernelFunction(threshold, scale)
    cosines = np.linspace(-0.99, 0.99, 300).reshape(3, 100)
    rise = kernel.values(cosines + 1e-6) - kernel.values(cosines - 1e-6)
    slopes = kernel.slopes(cosines.copy())
    np.testing.assert_allclose(slopes, rise / 2e-6, rtol=0, atol=1e-4 * np.abs(slopes).max())


def test_a_wide_network_has_the_kernel_of_the_output_layer():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((6, 3))
    X /= np.linalg.norm(X, axis=1)[:, None]
    activations = np.maximum(X @ rng.standard_normal((3, 400_000)) - 1.0, 0)
    sampled = activations @ activations.T / activations.shape[1]
    expected = KernelFunction(1.0, inf).values(X @ X.T)
    np.testing.assert_allclose(sampled, expected, rtol=0, atol=0.02 * expected.max())
