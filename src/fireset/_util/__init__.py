"""Utilities for all packages: errors, argument checks, files, threads, rounding, memory, text."""
