"""Wide layer inside PyTorch: 100,000 neurons between two small layers, cross-entropy, Adam.

Trains a model on scikit-learn's digits twice, with ``fireset.nn.ShiftedReLU`` and with an equivalent of
``torch.nn.Linear``, and prints loss, accuracy and seconds. Needs PyTorch::

    python examples/torch_layer.py [--width 100000] [--epochs 3]
"""

import argparse
import copy
import time

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fireset.nn import ShiftedReLU


class Normalize(nn.Module):
    """Scale rows to norm 1, for which the threshold is chosen."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.normalize(x)


def train(model: nn.Module, rows: TensorDataset, epochs: int) -> float:
    """Train by Adam on batches of 128; return the seconds."""
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    started = time.perf_counter()
    for epoch in range(epochs):
        torch.manual_seed(epoch)
        for x, y in DataLoader(rows, batch_size=128, shuffle=True):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=100_000)
    parser.add_argument("--epochs", type=int, default=3)
    arguments = parser.parse_args()

    X, y = load_digits(return_X_y=True)
    tensors = [torch.tensor(part) for part in train_test_split(X / 16, y, random_state=0, stratify=y)]
    x_train, x_test, y_train, y_test = (t.float() if t.is_floating_point() else t for t in tensors)

    torch.manual_seed(0)
    wide = ShiftedReLU(32, arguments.width, 16, trained_outputs=True)
    sparse = nn.Sequential(nn.Linear(64, 32), Normalize(), wide, nn.Linear(16, 10))
    plain = copy.deepcopy(sparse)
    plain[2] = wide.to_dense()  # computes every neuron; also for GPUs, ONNX and torch.compile

    for name, model in (("fireset.nn.ShiftedReLU", sparse), ("torch.nn.Linear", plain)):
        with torch.no_grad():
            model(x_train[:1])  # compiles or loads kernels
        seconds = train(model, TensorDataset(x_train, y_train), arguments.epochs)
        with torch.no_grad():
            loss = nn.functional.cross_entropy(model(x_train), y_train).item()
            accuracy = (model(x_test).argmax(1) == y_test).float().mean().item()
        print(f"{name:22}  loss {loss:.4f}, accuracy {accuracy:.2%} on {len(y_test)} held-out digits, {seconds:.1f} s")


if __name__ == "__main__":
    main()
