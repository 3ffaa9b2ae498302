"""Training: the problem, the plan, the loop, the solvers, and all that keeps a run safe."""
