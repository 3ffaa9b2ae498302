"""Exceptions that fireset raises, and the exit codes of its command line.

Every message names the argument, the value received and the remedy. docs/commands.md lists the exit codes.
"""

WRONG_INPUT = 2  # as the argument parser exits
INTERNAL = 70  # EX_SOFTWARE of sysexits.h: an error in fireset itself
NOT_WRITTEN = 73  # EX_CANTCREAT of sysexits.h: an output could not be written
WORKER_LOST = 75  # EX_TEMPFAIL of sysexits.h: try again
INTERRUPTED = 130  # 128 + SIGINT: Ctrl-C
BROKEN_PIPE = 141  # 128 + SIGPIPE: the reader of standard output has closed it
TERMINATED = 143  # 128 + SIGTERM


class InputError(ValueError):
    """The caller's mistake: a bad argument, file or table. The command line prints it in one line and exits 2."""


class CertificateError(RuntimeError):
    """An engine's claim about who cannot fire was found violated. Never expected; never ignored."""


class OutputError(RuntimeError):
    """The model was written, and something else that was asked for could not be."""


class WorkerLostError(RuntimeError):
    """Another worker of a distributed run is gone, or did not answer in time."""


class InvariantError(RuntimeError):
    """A run has contradicted what every run must satisfy. Never expected; never ignored."""
