"""How a run went."""

from dataclasses import dataclass, field
from typing import Any

from fireset.training.history import History
from fireset.training.stopping import StopReason


@dataclass
class TrainingResult:
    """How training went. The network itself was trained in place."""

    history: History
    stop_reason: StopReason
    engine: str
    solver: str
    learning_rate: float
    loss: float  # of the network as it is returned
    best_iteration: int  # the iteration whose weights it has
    start_seconds: float  # preprocessing and choosing η; compiling apart
    compile_seconds: float
    details: dict[str, Any] = field(default_factory=dict)  # what the solver has to say, such as its ridge
    blocks: int = 1  # of neurons, one after the other, for want of memory
    resumed_at: int | None = None  # the iteration of the checkpoint that training went on from
