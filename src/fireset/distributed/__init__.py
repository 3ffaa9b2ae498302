"""Training on several processes with torch.distributed, or on a single process without torch.

A network is a sum over neurons. Every worker has a range of the neurons, their candidate lists and index, and all rows,
and takes the gradient steps of its neurons. The workers exchange one sum of n × c predictions per iteration. In a grid
(``worker_grid.py``) a worker has a part of the rows, and the workers with the same neurons also sum their gradients.
"""
