"""Compiled inner loops: free functions over flat arrays. The only package that imports numba."""
