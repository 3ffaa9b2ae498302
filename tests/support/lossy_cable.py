"""A cable between two network namespaces that delays and loses what goes through it, in both directions.

    python lossy_cable.py NAMESPACE DEVICE NAMESPACE DEVICE LOSS DELAY

A TAP device at either end, and this process between them: ``netem`` is not in every kernel. The devices are there from
the line "ready" on, until the process ends.
"""

import ctypes
import fcntl
import heapq
import os
import random
import select
import struct
import sys
import time

_CLONE_NEWNET = 0x40000000
_TUNSETIFF = 0x400454CA
_TAP_WITHOUT_HEADER = 0x0002 | 0x1000
_FRAME = 65536


def make_end(namespace: str, device: str) -> int:
    """A TAP device in a namespace; frames are read from and written to what is returned."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{namespace}") as place:
        if libc.setns(place.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")
    end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(end, _TUNSETIFF, struct.pack("16sH", device.encode(), _TAP_WITHOUT_HEADER))
    return end


def carry(ends: tuple[int, int], loss: float, delay: float) -> None:
    """For ever: what comes in at one end goes out at the other, ``delay`` seconds later, or not at all."""
    chance, under_way, number = random.Random(0), [], 0
    other = {ends[0]: ends[1], ends[1]: ends[0]}
    while True:
        wait = max(0.0, under_way[0][0] - time.monotonic()) if under_way else None
        for end in select.select(ends, (), (), wait)[0]:
            frame = os.read(end, _FRAME)
            if chance.random() >= loss:
                number += 1  # frames that are due at the same time keep their order
                heapq.heappush(under_way, (time.monotonic() + delay, number, other[end], frame))
        while under_way and under_way[0][0] <= time.monotonic():
            _, _, end, frame = heapq.heappop(under_way)
            try:
                os.write(end, frame)
            except OSError:  # the device is not up yet, or its queue is full: one more that is lost
                continue


if __name__ == "__main__":
    both = make_end(*sys.argv[1:3]), make_end(*sys.argv[3:5])
    print("ready", flush=True)
    carry(both, float(sys.argv[5]), float(sys.argv[6]))
