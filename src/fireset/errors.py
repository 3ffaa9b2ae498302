"""The two kinds of failure that fireset reports by type, and the exit code that is none of them.

Every message names what was given, what was received and what to do instead.
"""

INTERRUPTED = 130  # what shells expect of a program ended by Ctrl-C


class InputError(ValueError):
    """The caller's mistake: a bad argument, file or table. The command line prints it in one line and exits 2."""


class CertificateError(RuntimeError):
    """An engine's claim about who cannot fire was found violated. Never expected; never ignored."""
