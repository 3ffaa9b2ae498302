"""Exceptions that fireset raises, and exit codes of the command line.

Every message names the argument, the value received and the remedy. docs/commands.md lists the exit codes.
"""

WRONG_INPUT = 2  # like the argument parser
INTERNAL = 70  # EX_SOFTWARE of sysexits.h: an error in fireset itself
NOT_WRITTEN = 73  # EX_CANTCREAT of sysexits.h: an output could not be written
WORKER_LOST = 75  # EX_TEMPFAIL of sysexits.h: try again
INTERRUPTED = 130  # 128 + SIGINT: Ctrl-C
BROKEN_PIPE = 141  # 128 + SIGPIPE: standard output was closed by its reader
TERMINATED = 143  # 128 + SIGTERM


class InputError(ValueError):
    """Invalid argument, file or table. The command line prints the message in one line and exits with code 2."""


class CertificateError(RuntimeError):
    """A candidate list lacks an active pair: the certificate of an engine is violated. Indicates a bug."""


class OutputError(RuntimeError):
    """The model was written, but another requested output could not be written."""


class WorkerLostError(RuntimeError):
    """Another worker of a distributed run has exited, or did not answer in time."""


class InvariantError(RuntimeError):
    """A run violates an invariant that every run must satisfy. Indicates a bug."""
