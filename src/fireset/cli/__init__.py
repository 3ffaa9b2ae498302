"""The command line. These modules parse arguments and print; ``fireset.commands`` does the work.

Expensive modules are imported inside of the commands, so that ``fireset --help`` is fast.
"""

from fireset.cli import analysis, models, train  # noqa: F401 - adds the commands to the application
from fireset.cli.app import app

__all__ = ["app"]
