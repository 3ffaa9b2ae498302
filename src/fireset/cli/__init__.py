"""The command line, one module a group of commands. They read arguments and print; ``fireset.commands`` does the work.

Nothing heavy is imported at the top of these modules: ``fireset --help`` has to answer at once.
"""

from fireset.cli import compare, models, quantum, theory, tools  # noqa: F401 - importing them adds their commands
from fireset.cli.app import app

__all__ = ["app"]
