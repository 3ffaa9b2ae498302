"""Prove that the list of a node contains all points of a half-space, by a bound on all points outside the list.

Layout of ``facets``, ``incident`` and of lists: ``fireset.kernels.hull_hierarchy``.
"""

import numpy as np

from fireset.kernels.compiling import internal, vectorized

INCOMPLETE, COMPLETE, STRICTLY_COMPLETE = range(3)
EPS = float(np.finfo(np.float64).eps)


@vectorized
def project(facets, chosen, count, direction, weights, residual, basis, triangle):
    """Solve least squares: the weights for which Σ_i weights[i] · (normal of facet chosen[i]) is nearest ``direction``.

    Modified Gram–Schmidt is applied to the direction as well as to the normals, which keeps the residual small even if
    they are nearly parallel. ``residual`` (ρ,), ``basis`` and ``triangle`` (ρ, ρ) are scratch. Returns False if the
    normals are linearly dependent up to rounding. Cost O(count² ρ).
    """
    rho = direction.shape[0]
    for i in range(count):
        for j in range(rho):
            basis[i, j] = facets[chosen[i], j]
        for k in range(i):
            overlap = 0.0
            for j in range(rho):
                overlap += basis[k, j] * basis[i, j]
            triangle[k, i] = overlap
            for j in range(rho):
                basis[i, j] -= overlap * basis[k, j]
        length = 0.0
        for j in range(rho):
            length += basis[i, j] * basis[i, j]
        length = np.sqrt(length)
        if not length > 1e-13:
            return False
        triangle[i, i] = length
        for j in range(rho):
            basis[i, j] /= length
    for j in range(rho):
        residual[j] = direction[j]
    for i in range(count):
        weights[i] = 0.0
        for j in range(rho):
            weights[i] += basis[i, j] * residual[j]
        for j in range(rho):
            residual[j] -= weights[i] * basis[i, j]
    for i in range(count - 1, -1, -1):
        for k in range(i + 1, count):
            weights[i] -= triangle[i, k] * weights[k]
        weights[i] /= triangle[i, i]
    return True


@internal
def rebalance(facets, chosen, count, direction, weights, trial, residual, basis, triangle):
    """Drop facets until the least-squares weights of the others are positive: the inner loop of Lawson and Hanson.

    Changes ``chosen`` and ``weights``; returns the number of facets left, or −1 if their normals are dependent.
    """
    while count > 0:
        if not project(facets, chosen, count, direction, trial, residual, basis, triangle):
            return -1
        first = -1
        step = 1.0  # fraction of the way from weights to trial at which the first weight becomes 0
        for i in range(count):
            if not trial[i] > 0.0:
                share = weights[i] / (weights[i] - trial[i]) if weights[i] > 0.0 else 0.0
                if first < 0 or share < step:
                    first = i
                    step = share
        if first < 0:
            for i in range(count):
                weights[i] = trial[i]
            return count
        kept = 0
        for i in range(count):
            weight = weights[i] + step * (trial[i] - weights[i])
            if i != first and weight > 0.0:
                chosen[kept] = chosen[i]
                weights[kept] = weight
                kept += 1
        count = kept
    return 0


@vectorized
def certify(direction, limit, radius, facets, incident, lo, hi, chosen, scratch):
    """Prove by weak duality that every point outside the list of a node has ⟨direction, x̂⟩ ≤ ``limit``.

    For any weights λ_f ≥ 0 of the facets ``incident[lo:hi]`` at the node let e = direction − Σ λ_f normal_f. A point
    outside the list has ⟨normal_f, x̂⟩ ≤ near_f for all of these facets, hence

        ⟨direction, x̂⟩ ≤ Σ λ_f near_f + ‖e‖ radius,

    and likewise with beyond_f for a point outside the first part of the list. The bound holds for any facets and any
    node: rounding errors of the hull, merged facets or a vertex that is not extreme can make it useless, but not wrong.
    If the vertex is extreme in this direction, the direction lies in the cone of the normals at the vertex: some λ has
    e = 0 and Σ λ_f offset_f = ⟨direction, vertex⟩. As Σ λ_f ≥ ‖direction‖ = 1, the difference of near_f to offset_f
    then covers rounding, even if limit is ⟨direction, vertex⟩ itself.

    λ is computed by non-negative least squares (Lawson and Hanson 1974); at most ρ weights are positive.

    Rounding: ‖direction‖ and ‖normal_f‖ are at most 1 + 1e-6, |near_f| and |beyond_f| at most 2 radius. The products
    that decided which points are listed err by ρ/2 eps radius for each unit of Σ λ_f, Σ λ_f near_f by (ρ + 1) eps
    radius for each, and e by (ρ + 1)/2 eps (1 + Σ λ_f) in length. 4 (ρ + 4) eps radius (1 + Σ λ_f) is twice as much as
    these, the sum itself and the last steps to limit.

    Returns (INCOMPLETE, COMPLETE or STRICTLY_COMPLETE; facets visited). INCOMPLETE means that there is no proof,
    STRICTLY_COMPLETE that the first part of the list suffices. ``chosen`` (ρ,) and ``scratch`` (2ρ + 3, ρ) are scratch.
    Cost O(ρ · facets) for each of about ρ passes.
    """
    rho = direction.shape[0]
    weights, trial, residual = scratch[0], scratch[1], scratch[2]
    basis, triangle = scratch[3 : 3 + rho], scratch[3 + rho :]
    rounding = 4 * (rho + 4) * EPS * radius
    count = 0
    visited = 0
    status = INCOMPLETE
    for _ in range(3 * rho + 3):
        length = 0.0
        for j in range(rho):
            residual[j] = direction[j]
            for i in range(count):
                residual[j] -= weights[i] * facets[chosen[i], j]
            length += residual[j] * residual[j]
        length = np.sqrt(length)
        total = near = beyond = 0.0
        for i in range(count):
            total += weights[i]
            near += weights[i] * facets[chosen[i], rho]
            beyond += weights[i] * facets[chosen[i], rho + 1]
        error = length * radius + rounding * (1.0 + total)
        if beyond + error <= limit:
            return STRICTLY_COMPLETE, visited
        if near + error <= limit:
            status = COMPLETE
        if count == rho or not length > 1e-14:
            break
        new = -1
        steepest = 0.0
        visited += hi - lo
        for p in range(lo, hi):
            slope = 0.0
            for j in range(rho):
                slope += facets[incident[p], j] * residual[j]
            if slope > steepest:
                steepest = slope
                new = incident[p]
        if new < 0:
            break
        chosen[count] = new
        weights[count] = 0.0
        count = rebalance(facets, chosen, count + 1, direction, weights, trial, residual, basis, triangle)
        if count < 0:
            break
    return status, visited
