"""The kinds of failure that fireset reports by type, and the exit codes of ends that are none of them.

Every message names what was given, what was received and what to do instead.
"""

INTERRUPTED = 130  # what shells expect of a program ended by Ctrl-C,
TERMINATED = 143  # and by SIGTERM
NOT_WRITTEN = 73  # EX_CANTCREAT of sysexits.h: an output could not be made
WORKER_LOST = 75  # EX_TEMPFAIL of sysexits.h: try again


class InputError(ValueError):
    """The caller's mistake: a bad argument, file or table. The command line prints it in one line and exits 2."""


class CertificateError(RuntimeError):
    """An engine's claim about who cannot fire was found violated. Never expected; never ignored."""


class OutputError(RuntimeError):
    """The model was written, and something else that was asked for could not be."""


class WorkerLostError(RuntimeError):
    """Another worker of a distributed run is gone, or did not answer in time."""
