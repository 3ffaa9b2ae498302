"""Compiled inner loops: free functions over flat arrays. The only package that knows numba."""
