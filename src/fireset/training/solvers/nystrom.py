"""Gauss–Newton restricted to the gradients of a few centre rows, for many rows.

The weights stay in W₀ + span{∂u(c_j)/∂W}: W = W₀ + J_Mᵀ γ with γ (M, c), for M centres c_j that are drawn from the
rows, where J_M is the Jacobian of the centres at the initial weights. This is Nyström's restriction of kernel
regression, with the network's own tangent kernel (Rudi, Carratino and Rosasco, "FALKON", 2017). With K_nM the kernel
between rows and centres, e = ∂L/∂u, b the curvatures of the loss and D = W − W₀, a round minimizes the objective of
``gauss_newton.py`` over steps J_Mᵀγ:

    (K_Mn B K_nM + ν K_MM) γ = −(K_Mn e + λ J_M D).

The sums over rows, K_Mn B K_nM and K_Mn e, are made in one pass over blocks of rows (``engines/centre_kernel.py``); no
block is kept, and neither the width nor the number of active pairs affects the memory. Each sum is M × M or M × c
numbers, whatever the number of rows. With L Lᵀ = K_MM and γ = L⁻ᵀ z the system is (L⁻¹ K_Mn B K_nM L⁻ᵀ + ν) z =
−L⁻¹(…).

With ``trained_outputs=s`` the output weights of some neurons are trained, too. Their derivatives, s √(m/q) κ/√m
σ_b(⟨w_r, x_i⟩) for q different neurons with Q copies each, are q further columns of K_nM, with the identity in K_MM and
in L. The factor makes the sum of their products an estimate of the kernel of the whole output layer. The penalty of the
output weights A is (λ/2) ‖A − A₀‖² q Q/(m s²).

Three approximations, none of which affects the reported loss, which is that of the returned weights:

1. The optimum is that over the span of the centres' gradients.
2. The kernel is that of the initial weights. With a large output scale κ hardly any pair changes state. The trust ratio
   of the round shows whether it does.
3. The kernel between different outputs is 0 at an orthogonal start. At other starts its entries are noise of order
   1/√m: the matrix leaves them out, and the gradient J_M Jᵀe includes them, by a dense pass over all pairs, so that
   further rounds converge to the optimum over the span.

Of several workers each makes these sums over some blocks of its rows, with the initial weights of all neurons; the sums
are added, and the first worker solves the system. A round exchanges about M²/2 + M c numbers, whatever the number of
rows. Blocks are the same for any grid, and sums over blocks do not depend on their order (``_rounded``), so that γ has
the same bits for any number of workers.
"""

from math import frexp
from typing import Any

import numpy as np

from fireset._util.checks import whole_number
from fireset._util.cholesky import cholesky_solve, cholesky_with_jitter
from fireset._util.parallel import parallel_map
from fireset.distributed.agreement import raise_on_all_workers
from fireset.distributed.engine import sum_in_place, sum_over_workers
from fireset.distributed.process_group import ProcessGroup
from fireset.distributed.shard import NetworkShard
from fireset.engines.centre_kernel import BLOCK_ROWS, CentreKernel
from fireset.engines.registry import REFERENCE, create
from fireset.network import ShiftedReLUNetwork
from fireset.theory.leave_one_out import LeaveOneOutFit
from fireset.training.run import Run
from fireset.training.solvers.gauss_newton import GaussNewton, _Point, _Proposal, choose_ridge
from fireset.training.solvers.held_out_ridge import choose_held_out_ridge

CENTRES, SHARED_CENTRES = 1600, 3200  # default for one output, and for several, which share the sums over the rows
_TRAINED_SHARE = 0.5  # of these numbers: output weights, if they are trained
_GRAM_TILE = 512  # largest number of centres of a tile of K_Mn B K_nM that one task adds to
_SPLIT_ROWS = 512  # rows of a block that one task splits
_LARGE_DIRECTIONS = 16  # directions of the centres that are summed in float64
_POWER_STEPS = 2  # orthogonal iterations that find these directions
_DEPENDENT_EPS = 32.0  # times eps of float32 and the largest diagonal entry: below, a centre depends on others
_MAX_SYSTEMS = 16  # outputs with curvatures of their own; with more, all use the largest curvature of a row
_HELD_ROWS = 2048  # by which the ridge is chosen; at most a block
_MIN_ROWS_TO_HOLD = 8 * _HELD_ROWS  # with fewer rows it is not
_MAX_SIZE = 1e300  # of sums that are made in any order
_NEGLIGIBLE_GAIN = 0.3  # of ``tol`` of the objective: gain of a further round, estimated at the centres


class NystromGaussNewton(GaussNewton):
    """Gauss–Newton over the span of the centres' gradients.

    Parameters
    ----------
    ridge, tol
        As for ``GaussNewton``. "auto" chooses the ridge by leave-one-out on the centres, and for squared error and at
        least 16,384 rows again by 2,048 rows that are held out of the sums.
    centres : int, optional
        Largest number M of centres, by default 1,600 for one output and 3,200 for several; half of each number if
        output weights are trained. They are drawn from the rows, with probabilities proportional to sample weights. A
        pass costs 2·m·d + M·m/512 + M² operations for each row; memory is that of a few M × M matrices.
    trained_outputs : bool or float
        s: the scale of the steps of the output weights relative to those of the weights, if all of them were trained.
        As many as there are centres are trained. 0 or False keeps the output weights, True is 1.

    Attributes
    ----------
    n_centres : int
        Number of centres in use, whose gradients are linearly independent.
    passes : int
        Number of passes over the rows so far.
    """

    name = "nystrom"
    uses_centres = True
    label = "Gauss–Newton on centres"
    forward_only = True
    row_unit = BLOCK_ROWS

    def __init__(
        self,
        ridge: float | str = "auto",
        tol: float = 1e-3,
        centres: int | None = None,
        trained_outputs: bool | float = False,
    ):
        super().__init__(ridge, tol, trained_outputs)
        self._output_layer_scale = float(trained_outputs)
        self._given_centres = None if centres is None else whole_number("centres", centres, 1)
        self.n_centres = self.passes = 0

    def _reset(self, run: Run) -> None:
        super()._reset(run)
        network, shard, shares, weight = run.network, run.shard, run.problem.shares, run.problem.weight
        total, positive = shares.totals(float(weight.sum()), float(np.count_nonzero(weight)))
        most = self._max_centres(network)
        self._drawn = shares.draw_distinct(weight, min(most, round(positive)), np.random.default_rng(0))
        own = ShiftedReLUNetwork(self._initial_weights, self._initial_outputs, network.threshold, network.output_scale)
        start = NetworkShard(own, shard.first, shard.width, shard.grid).whole()
        centres = shares.select(run.problem.X, self._drawn)
        self._kernel = CentreKernel(start, centres, most if self.trains_outputs else 0, self._output_layer_scale)
        if self.trains_outputs:
            trained = max(self._kernel.n_trained * self._kernel.copies, 1)
            self._output_factor = self._output_layer_scale**2 * start.width / trained
        self._keep_independent()
        self._centres, self.n_centres = self._drawn[self._independent], len(self._independent)
        # Σ f over all rows is estimated by Σ f/weight over the centres, times this number.
        self._rows_per_centre = total / max(self.n_centres, 1)
        # J_M and its transpose at the initial weights, in float64: a step is rounded once, in the same way on any grid.
        self._centre_engine = sum_over_workers(create(REFERENCE), shard)
        weights, output_weights = own.weights.astype(np.float64), own.output_weights.astype(np.float64)
        double = ShiftedReLUNetwork(weights, output_weights, own.threshold, own.output_scale)
        self._centre_engine.start(double, self._kernel.centres.astype(np.float64, copy=False))
        self._n_columns = self.n_centres + self._kernel.n_trained
        by_copy = start.output_weights.reshape(self._kernel.copies, -1, network.n_outputs)
        self._zero_at_start = not by_copy.sum(axis=0).any()
        products = np.einsum("qrk,qrl->rkl", by_copy, by_copy)
        self._decoupled = bool((products == len(by_copy) * np.eye(network.n_outputs)).all())
        if not self._decoupled:
            # Jᵀ of all rows, at the initial weights
            self._row_engine = sum_over_workers(create("dense", forward_only=True), shard, run.problem.row_group)
            self._row_engine.start(own, run.problem.X)
        self._searches_ridge = (
            self._requested_ridge == "auto" and run.loss.is_squared_error and positive >= _MIN_ROWS_TO_HOLD
        )
        self._systems: list[_System] = []  # on the first worker
        self._system_roots: np.ndarray | None = None
        self._expected: np.ndarray | None = None  # ∂L/∂u at the centres that the last round predicts

    def _keep_independent(self) -> None:
        """Select independent centres on the first worker; the others need their numbers and the large directions."""
        group, drawn = self.run.group, len(self._drawn)
        found = np.zeros(drawn + 1, np.int64)
        with raise_on_all_workers(group):
            if group.rank == 0:
                independent, self._factor = _independent(self._kernel.matrix)
                found[0], found[1 : len(independent) + 1] = len(independent), independent
        group.broadcast(found, source=0)
        self._independent = found[1 : found[0] + 1]
        self._kernel.keep(self._independent)
        columns = found[0] + self._kernel.n_trained
        self._directions = np.zeros((columns, min(_LARGE_DIRECTIONS, found[0])))
        if found[0]:
            with raise_on_all_workers(group):
                if group.rank == 0:
                    self._directions[:] = _large_directions(self._kernel.centre_rows)
            group.broadcast(self._directions, source=0)

    def _at_centres(self, own: np.ndarray) -> np.ndarray:
        """Return the entries of an array over this worker's rows, (n_j, …), at the centres, from all workers."""
        return self.run.problem.shares.select(own, self._drawn)[self._independent]

    def _max_centres(self, network: ShiftedReLUNetwork) -> int:
        share = _TRAINED_SHARE if self.trains_outputs else 1.0
        return self._given_centres or round(share * (CENTRES if network.n_outputs == 1 else SHARED_CENTRES))

    def _choose_ridge(self) -> float:
        """Choose the ridge on the centres. All have one weight: they were drawn in proportion to theirs."""
        run, problem = self.run, self.run.problem
        if not self.n_centres:
            return 1.0
        total, positive = problem.total(float(problem.weight.sum()), float(np.count_nonzero(problem.weight)))
        weight = np.full(self.n_centres, total / positive)
        targets = self._at_centres(problem.targets)
        zero = run.group.all_true(self._zero_at_start)
        start = np.zeros_like(targets) if zero else self._centre_engine.forward()

        def choose() -> LeaveOneOutFit:
            activations = self._kernel.centre_rows[:, self.n_centres :]
            kernel = (self._kernel.matrix + activations @ activations.T) * self._kernel.unit
            return choose_ridge(kernel.astype(run.network.dtype), run.loss, start, targets, weight)

        return self._choose_on_first_worker(choose)

    def predictions(self) -> np.ndarray | None:
        """Return zeros where copies of neurons cancel, as at an antisymmetric start, else None.

        Zeros need no forward pass.
        """
        run = self.run
        at_start = self._zero_at_start and np.array_equal(run.network.weights, self._initial_weights)
        at_start = at_start and np.array_equal(run.network.output_weights, self._initial_outputs)
        if not run.group.all_true(at_start):
            return None
        run.engine.work.active_pairs = round(self._kernel.active_per_centre * run.problem.n_rows)
        return np.zeros((len(run.problem.X), run.network.n_outputs))

    def _move(self, point: _Point) -> None:
        if self._gain_is_negligible(point):
            self.converged = True
        else:
            super()._move(point)

    def _gain_is_negligible(self, point: _Point) -> bool:
        """Estimate at the centres what a further round would gain, without a pass over the rows.

        The last round made the gradient over the span 0 for residuals e₁ of the linearized network. With the residuals
        e of the network itself, a further round gains at most ½ Σ (e − e₁)²/b.
        """
        if self._expected is None:
            return False
        run, problem = self.run, self.run.problem
        weight, targets, u, residual = (
            self._at_centres(own) for own in (problem.weight, problem.targets, point.predictions, point.residual)
        )
        b = np.maximum(run.loss.curvatures(u, targets, weight), 1e-300)
        gain = 0.5 * ((residual - self._expected) ** 2 / b).sum(axis=1) @ (1.0 / weight)
        small = float(gain) * self._rows_per_centre <= _NEGLIGIBLE_GAIN * self._tol * point.objective
        return run.group.all_true(small)

    def _propose(self, point: _Point, *, strict: bool = False) -> _Proposal:  # noqa: ARG002 - systems are factored
        run, unit = self.run, self._kernel.unit
        curvatures = run.loss.curvatures(point.predictions, run.problem.targets, run.problem.weight)
        gradient = self._sum_rows(point.residual, np.sqrt(curvatures))
        if self._searches_ridge:
            self._search_ridge(point, gradient)
        ridge = self._ridge / unit
        displacement = (run.network.weights - self._initial_weights).astype(np.float64, copy=False)
        gradient[: self.n_centres] += ridge * self._centre_engine.jacobian_product(displacement)
        if self.trains_outputs:
            gradient[self.n_centres :] += ridge * self._output_displacement()
        # γ, the change of the outputs of the centres, and the predicted reduction
        solution = np.empty((self._n_columns + self.n_centres + 1, gradient.shape[1]))
        with raise_on_all_workers(run.group):
            if run.group.rank == 0:
                self._solve_systems(gradient, ridge, solution)
        run.group.broadcast(solution, source=0)
        coefficients, change = solution[: self._n_columns], solution[self._n_columns : -1]
        reduction = float(solution[-1].sum())
        if self._damping:
            self._expected = None
        else:
            self._expected = self._at_centres(point.residual) + self._at_centres(curvatures) * change
            self.predicted_reduction = reduction / point.objective if point.objective > 0 else 0.0
        neurons, rows = self._centre_engine.gradient(coefficients[: self.n_centres] / unit)
        new = run.network.weights.copy()
        new[neurons] -= rows
        outputs = self._moved_outputs(coefficients[self.n_centres :]) if self.trains_outputs else None
        return _Proposal(new, outputs, reduction, solved=True)

    def _search_ridge(self, point: _Point, gradient: np.ndarray) -> None:
        """Choose the ridge by held-out rows, in the first iteration, in which no weight has moved."""
        self._searches_ridge = False
        run, problem = self.run, self.run.problem
        moved = not np.array_equal(run.network.weights, self._initial_weights)
        if not self.n_centres or not run.group.all_true(not moved):
            return
        rows = problem.shares.draw_distinct(problem.weight, _HELD_ROWS, np.random.default_rng(1))
        X = problem.shares.select(problem.X, rows)
        residual, weight = problem.shares.select(point.residual, rows), problem.shares.select(problem.weight, rows)

        def search() -> float:
            _, K = next(self._kernel.blocks(X))
            Z, right = _solve(self._factor, K.T.astype(np.float64)).T, _solve(self._factor, gradient)
            matrix, first = self._systems[0].matrix, self._ridge / self._kernel.unit
            return self._kernel.unit * choose_held_out_ridge(matrix, right, Z, residual, weight, first)

        shared = np.zeros(1)
        with raise_on_all_workers(run.group):
            if run.group.rank == 0:
                shared[0] = search()
        run.group.broadcast(shared, source=0)
        self._ridge = float(shared[0])

    # Output weights: those of the Q copies of trained neuron r move together, by √(_output_factor/(Q·unit)) γ_r

    def _output_numbers(self) -> tuple[np.ndarray, np.ndarray]:
        """Return this worker's neurons with trained outputs, and the numbers of their columns after the centres."""
        shard, different = self.run.shard, self.run.shard.width // self._kernel.copies
        columns = np.arange(shard.first, shard.first + len(self._initial_outputs)) % different
        neurons = np.flatnonzero(columns < self._kernel.n_trained)
        return neurons, columns[neurons]

    def _output_displacement(self) -> np.ndarray:
        """Return the γ, (n_trained, c), that move the output weights from the initial to the current ones."""
        neurons, columns = self._output_numbers()
        moved = self.run.network.output_weights[neurons].astype(np.float64) - self._initial_outputs[neurons]
        sums = np.zeros((self._kernel.n_trained, moved.shape[1]))
        np.add.at(sums, columns, moved)
        sums = sum_in_place(sums, self.run.shard.group)
        return sums * (self._kernel.unit / (self._kernel.copies * self._output_factor)) ** 0.5

    def _moved_outputs(self, coefficients: np.ndarray) -> np.ndarray:
        """Return this worker's output weights after the step −γ."""
        neurons, columns = self._output_numbers()
        new = self.run.network.output_weights.copy()
        factor = (self._output_factor / (self._kernel.copies * self._kernel.unit)) ** 0.5
        new[neurons] = (new[neurons] - factor * coefficients[columns]).astype(new.dtype)
        return new

    def _solve_systems(self, gradient: np.ndarray, ridge: float, solution: np.ndarray) -> None:
        """Solve the system of each output; fill ``solution`` with L⁻ᵀz, −L z and the predicted reduction."""
        L, count = self._factor, self._n_columns
        right = _solve(L, gradient)
        z = np.empty_like(right)
        for k in range(right.shape[1]):
            system = self._systems[min(k, len(self._systems) - 1)]
            z[:, k] = system.solve(right[:, k], ridge + self._damping / self._kernel.unit)
            solution[-1, k] = float(z[:, k] @ right[:, k]) - 0.5 * system.square(z[:, k], ridge)
        solution[:count] = _solve(L, z, transposed=True)
        solution[count:-1] = -self._kernel.centre_rows @ solution[:count]

    def _own_blocks(self) -> tuple[int, int]:
        """Return the range of this worker's training rows: those with the same rows divide their blocks."""
        problem, group = self.run.problem, self.run.shard.group
        trained = len(problem.X) - int(np.count_nonzero(problem.held_out))  # validation rows are last
        blocks = -(-trained // BLOCK_ROWS)
        first, last = (min(blocks * rank // group.size * BLOCK_ROWS, trained) for rank in (group.rank, group.rank + 1))
        return first, last

    def _sum_rows(self, residual: np.ndarray, roots: np.ndarray) -> np.ndarray:
        """Return J_M Jᵀe, (M + n_trained, c), and make the systems of K_Mn B K_nM anew if the curvatures have changed.

        If outputs are not coupled, the first is K_Mn e, and one pass over the rows makes both sums.
        """
        group, (first, last) = self.run.group, self._own_blocks()
        count, outputs = self._n_columns, residual.shape[1]
        if group.all_true(bool((roots == roots[:, :1]).all())):
            roots = roots[:, :1]
        elif outputs > _MAX_SYSTEMS:
            roots = roots.max(axis=1, keepdims=True)
        known = self._system_roots
        unchanged = group.all_true(known is not None and np.array_equal(roots, known))
        offsets = self._offsets(residual, roots)
        small = np.zeros((count, outputs))  # K_Mn e is small + U large
        large = np.zeros((self._directions.shape[1], outputs))
        grams = [] if unchanged else [_GramSum(self._directions, *given) for given in offsets[1:]]
        coupled = None
        if not self._decoupled:
            directions = np.zeros_like(self._initial_weights)
            neurons, sums = self._row_engine.gradient(residual)
            directions[neurons] = sums
            coupled = self._centre_engine.jacobian_product(directions.astype(np.float64)) / self._kernel.unit
        parts = {"small": small, "large": large}
        parts |= {f"{name}{k}": array for k, gram in enumerate(grams) for name, array in gram.sums.items()}
        path, done = None, 0
        if self.pass_state is not None:
            inputs = {"weights": self.run.network.weights, "residual": residual, "roots": roots}
            inputs |= {"centres": self._centres, "rows": np.array([first, last])}
            path, done = self.pass_state.resume(inputs, parts)
        own, meter = self.run.problem.X[first:last], self.run.meter
        meter.begin("pass", done)
        summed, panels = self._decoupled or self.trains_outputs, None
        for block, K in self._kernel.blocks(own, done) if summed or grams else ():
            rows = slice(first + block.start, first + block.stop)
            P = _split(K, self._directions)
            if summed:
                _add_products(small, K, residual[rows].astype(K.dtype), offsets[0, 0])
                large += _rounded(P.T.astype(np.float64) @ residual[rows], offsets[0, 1])
            for k, gram in enumerate(grams):
                panels = gram.add(K, P, roots[rows, k], panels)
            meter.report(block.stop, len(own))
            if self.pass_state is not None and path is not None:
                self.pass_state.save(path, block.stop, parts)
        self.passes += 1
        if not unchanged:
            self._systems = []  # frees the memory of the old ones first
            for gram in grams:
                gram.add_workers(group)
            with raise_on_all_workers(group):
                if group.rank == 0:
                    self._systems = [_System(gram.total(), self._factor) for gram in grams]
            self._system_roots = roots
        found = sum_in_place(small, group) + self._directions @ sum_in_place(large, group)
        if coupled is not None:
            found[: self.n_centres] = coupled
        return found

    def _offsets(self, residual: np.ndarray, roots: np.ndarray) -> np.ndarray:
        """Return the ``_offset`` of the sums over rows, with sizes estimated at the centres; equal on all workers.

        The first row is for the two sums of the gradient, the others for the three sums of each system.
        """
        offsets = np.zeros((1 + roots.shape[1], 3))
        each = 1.0 / self._at_centres(self.run.problem.weight)[:, None]
        residual, curvatures = np.abs(self._at_centres(residual)), self._at_centres(roots) ** 2
        if self.run.group.rank == 0 and self.n_centres:
            U = self._directions
            large = self._kernel.centre_rows @ U
            small = self._kernel.centre_rows - large @ U.T
            first = [(np.abs(part).T @ (each * residual)).max() for part in (small, large)]
            rest, core = (((part**2).T @ (each * curvatures)).max(axis=0) for part in (small, large))
            sizes = np.vstack([[*first, 0.0], np.column_stack([rest, np.sqrt(rest * core), core])])
            offsets[:] = [[_offset(self._rows_per_centre * size) for size in row] for row in sizes]
        self.run.group.broadcast(offsets, source=0)
        return offsets

    # Reports, memory and checkpoints

    def details(self) -> dict[str, Any]:
        own = {"centres": self.n_centres, "passes": self.passes}
        own |= {"trained_output_neurons": self._kernel.n_trained} if self.trains_outputs else {}
        return {name: value for name, value in super().details().items() if name != "products"} | own

    def settings(self) -> dict[str, Any]:
        outputs = {"trained_outputs": self._output_layer_scale} if self.trains_outputs else {}
        return super().settings() | {"centres": self._given_centres} | outputs

    def extra_bytes(self, network: ShiftedReLUNetwork, n_samples: int) -> float:
        """Return the memory of copies of the weights, M × M matrices, and a block of the kernel with two copies.

        Features of held-out rows in float64 may need more than the block.
        """
        most = self._max_centres(network)
        count, systems = min(most, n_samples), min(network.n_outputs, _MAX_SYSTEMS)
        bits = count * network.width
        count += min(most, network.width) if self.trains_outputs else 0
        matrices = 8.0 * count**2 * (6 + 2 * systems)
        block = 4.0 * min(BLOCK_ROWS, n_samples) * count * network.dtype.itemsize
        held = 3.0 * 8 * _HELD_ROWS * count if n_samples >= _MIN_ROWS_TO_HOLD else 0.0
        double = 3.0 * 8 * network.weights.size  # a copy of the weights, a displacement or step
        outputs = 6.0 * network.output_weights.nbytes if self.trains_outputs else 0.0
        return 6.0 * network.weights.nbytes + outputs + double + bits + matrices + max(block, held)

    def drop_caches(self) -> None:
        super().drop_caches()
        self._systems, self._system_roots, self._expected = [], None, None


class _System:
    """The matrix L⁻¹ K_Mn B K_nM L⁻ᵀ + ν of one output or of all; the factor of the last ν is kept."""

    def __init__(self, gram: np.ndarray, L: np.ndarray):
        """``gram`` is K_Mn B K_nM, of which the lower triangle is read; L may be that of the first rows. Cost 2 M³."""
        symmetric = np.tril(gram) + np.tril(gram, -1).T
        inner = _solve(L, _solve(L, symmetric).T)
        self.matrix = (inner + inner.T) / 2
        self._factor, self._shift = np.empty((0, 0)), -1.0

    def solve(self, right: np.ndarray, shift: float) -> np.ndarray:
        """Solve for a right side (M,). Rounding of float32 may leave the matrix indefinite for a tiny ν."""
        if shift != self._shift:
            self._factor, _ = cholesky_with_jitter(lambda: self.matrix + shift * np.eye(len(self.matrix)))
            self._shift = shift
        return cholesky_solve(self._factor, right[:, None])[:, 0]

    def square(self, z: np.ndarray, ridge: float) -> float:
        """Return z·(L⁻¹ K_Mn B K_nM L⁻ᵀ + λ) z."""
        return float(z @ (self.matrix @ z)) + ridge * float(z @ z)


class _GramSum:
    """The sum K_Mn B K_nM over blocks of rows, with products in the precision of K and sums in float64.

    All entries of K are positive and similar if all rows are similar, as with a large bias coordinate. Products in
    float32 then round away the differences, which L⁻¹ enlarges. A few directions U of the centres, (M, r) with UᵀU = 1,
    have nearly all of K. Without them K is R = K − P Uᵀ, P = K U, with small entries, and

        Kᵀ B K = Rᵀ B R + (Rᵀ B P) Uᵀ + U (Rᵀ B P)ᵀ + U (Pᵀ B P) Uᵀ,

    in which only Rᵀ B R is computed in float32. Any U gives the same sum up to rounding.
    """

    def __init__(self, directions: np.ndarray, *offsets: float):
        """``offsets`` are those of Rᵀ B R, Rᵀ B P and Pᵀ B P."""
        count, few = directions.shape
        self._directions, self._offsets = directions, offsets
        self._rest, self._cross, self._core = np.zeros((count, count)), np.zeros((count, few)), np.zeros((few, few))

    @property
    def sums(self) -> dict[str, np.ndarray]:
        """The sums so far, which a checkpoint stores."""
        return {"rest": self._rest, "cross": self._cross, "core": self._core}

    def add(
        self, R: np.ndarray, P: np.ndarray, roots: np.ndarray, panels: np.ndarray | None = None
    ) -> np.ndarray | None:
        """Add a block of rows, R (k, M) and P (k, r), with curvatures roots² (k,).

        Tasks divide the sums, so that the result does not depend on the number of threads. ``panels`` is working memory
        of an earlier call; that of this one is returned.
        """
        from fireset.kernels.gram import HAS_WIDE_REGISTERS

        equal = bool((roots == 1.0).all())
        scaled = R if equal else R * roots[:, None].astype(R.dtype)
        large = P.astype(np.float64) if equal else P * roots[:, None]
        count = len(self._rest)
        tiles = _tiles(count)
        wide = HAS_WIDE_REGISTERS and R.dtype == np.float32

        def add(tile: tuple[slice, slice | None]) -> None:
            rows, columns = tile
            if columns is None:
                self._cross[rows] += _rounded(scaled[:, rows].T.astype(np.float64) @ large, self._offsets[1])
            else:
                self._rest[rows, columns] += _rounded(scaled[:, rows].T @ scaled[:, columns], self._offsets[0])

        pairs = [
            (rows, columns) for k, rows in enumerate(tiles) for columns in (*(() if wide else tiles[: k + 1]), None)
        ]
        parallel_map(add, pairs, uses_blas=True)
        self._core += _rounded(large.T @ large, self._offsets[2])
        return self._add_strips(scaled, panels) if wide else None

    def _add_strips(self, scaled: np.ndarray, panels: np.ndarray | None) -> np.ndarray:
        """Add the lower triangle of scaledᵀ scaled to that of the first sum, 64 rows at a time; return the panels."""
        from fireset.kernels.gram import LANES, add_gram_strip

        (rows, count), strips = scaled.shape, -(-scaled.shape[1] // LANES)
        if panels is None or panels.shape[1] != rows:
            panels = np.zeros((strips, rows, LANES), np.float32)

        def pack(k: int) -> None:
            own = scaled[:, k * LANES : (k + 1) * LANES]
            panels[k, :, : own.shape[1]] = own

        def add(k: int) -> None:
            strip = np.zeros((LANES, (k + 1) * LANES), np.float32)
            add_gram_strip(panels, k, strip)
            own = slice(k * LANES, min((k + 1) * LANES, count))
            sums = strip[: own.stop - own.start, : own.stop]
            self._rest[own, : own.stop] += _rounded(sums, self._offsets[0])

        parallel_map(pack, range(strips))
        parallel_map(add, range(strips)[::-1])
        return panels

    def add_workers(self, group: ProcessGroup) -> None:
        """Add the sums of all workers: a little more than half of the matrix."""
        for rows in _tiles(len(self._rest)) if group.size > 1 else ():
            self._rest[rows, : rows.stop] = group.all_reduce_exact(self._rest[rows, : rows.stop])[0]
        sum_in_place(self._cross, group)
        sum_in_place(self._core, group)

    def total(self) -> np.ndarray:
        """Return the sum, (M, M), of which the lower triangle is valid. The parts are not kept."""
        U, total = self._directions, self._rest
        mixed = (self._cross + 0.5 * U @ self._core) @ U.T
        total += mixed
        total += mixed.T
        return total


def _offset(size: float) -> float:
    """Return the offset with which ``_rounded`` rounds to multiples of 2⁻⁴⁸ ``size``; 0 for no rounding."""
    return 1.5 * 2.0 ** (frexp(size)[1] + 4) if 0 < size < _MAX_SIZE else 0.0


def _rounded(addend: np.ndarray, offset: float) -> np.ndarray:
    """Return an addend in float64, rounded to multiples of the unit in the last place of ``offset``.

    Sums of such addends are exact, so that they do not depend on the order, up to 16 times the ``size`` of ``_offset``.
    """
    shifted = addend + np.float64(offset)
    shifted -= offset
    return shifted


def _add_products(total: np.ndarray, K: np.ndarray, residual: np.ndarray, offset: float) -> None:
    """Add Kᵀe to ``total``, (M, c)."""

    def add(tile: slice) -> None:
        total[tile] += _rounded(K[:, tile].T @ residual, offset)

    parallel_map(add, _tiles(len(total)), uses_blas=True)


def _tiles(count: int) -> list[slice]:
    """Divide ``count`` centres into slices of nearly equal size."""
    parts = max(1, -(-count // _GRAM_TILE))
    return [slice(count * k // parts, count * (k + 1) // parts) for k in range(parts)]


def _large_directions(matrix: np.ndarray) -> np.ndarray:
    """Return orthonormal directions of the largest singular values, (columns, r), by orthogonal iteration."""
    rows, columns = matrix.shape
    U = np.random.default_rng(0).standard_normal((columns, min(_LARGE_DIRECTIONS, rows)))
    for _ in range(_POWER_STEPS):
        U = np.linalg.qr(matrix.T @ (matrix @ U))[0]
    return U


def _split(K: np.ndarray, directions: np.ndarray) -> np.ndarray:
    """Replace a block K (k, M) by R = K − P Uᵀ and return P = K U, (k, r), both in the precision of K."""
    U = directions.astype(K.dtype)
    P = np.empty((len(K), U.shape[1]), K.dtype)

    def split(lo: int) -> None:
        rows = slice(lo, lo + _SPLIT_ROWS)
        P[rows] = K[rows] @ U
        K[rows] -= P[rows] @ U.T

    parallel_map(split, range(0, len(K), _SPLIT_ROWS), uses_blas=True)
    return P


def _independent(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of independent centres and the Cholesky factor L of their kernel, (k, k).

    Pivoted Cholesky: centres whose remaining diagonal entry is below the rounding of float32 are left out, such as
    copies of others and centres without an active neuron. Cost M³/3.
    """
    from scipy.linalg import get_lapack_funcs

    least = _DEPENDENT_EPS * float(np.finfo(np.float32).eps) * float(matrix.diagonal().max())
    if not least > 0:
        return np.empty(0, np.int64), np.empty((0, 0))
    (pstrf,) = get_lapack_funcs(("pstrf",), (matrix,))
    factor, order, count, _ = pstrf(matrix, tol=least, lower=1)
    return order[:count] - 1, np.tril(factor[:count, :count])


def _solve(L: np.ndarray, right: np.ndarray, *, transposed: bool = False) -> np.ndarray:
    """Solve L Z = right, or Lᵀ Z = right, for the first rows of Z; the others are those of ``right``."""
    from scipy.linalg import solve_triangular

    Z = right.copy()
    Z[: len(L)] = solve_triangular(L, right[: len(L)], lower=True, trans=1 if transposed else 0)
    return Z
