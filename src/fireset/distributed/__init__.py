"""Neurons in shards over several processes, joined by torch.distributed; or a single process, with no torch at all.

A network is a sum over neurons. Every worker keeps a range of them, their lists and their index, sees all samples, and
takes its own gradient steps; what joins them is one sum of n × c predictions in every iteration. In a grid
(``worker_grid.py``) a worker sees a part of the samples, and a sum of the gradients of its neurons joins it with those
that see the others.
"""
