"""Grover's search for the fire sets: simulation with all costs, and circuits."""

from fireset.quantum.search import (
    Schedule,
    SearchResults,
    find_all,
    find_all_batch,
    make_schedule,
    phase_success,
    success_probability,
)

__all__ = [
    "Schedule",
    "SearchResults",
    "find_all",
    "find_all_batch",
    "make_schedule",
    "phase_success",
    "success_probability",
]
