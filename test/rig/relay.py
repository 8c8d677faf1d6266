# SPDX-License-Identifier: BSD-3-Clause
"""A switch with bad cables: joins TAP devices in the networks of several processes, and one of its own.

relay.py [--delay MS] [--loss PERCENT] [--repeat PERCENT] [--reorder PERCENT] [--seed N] PID...

Every packet from one host to another waits MS milliseconds; of 100 of them PERCENT are lost, sent twice, or held back
for four times MS (1 ms at least) and so overtaken. What goes to or comes from the network of this process is a
launcher's and travels at once. Prints "ready" when all devices are there, and at the end how many packets met
which fate.
"""

import argparse
import fcntl
import heapq
import os
import random
import selectors
import signal
import struct
import sys
import time

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x2, 0x1000
CLONE_NEWNET = 0x40000000
FRAME = 65536
BROADCAST = b"\xff" * 6


def open_tap():
    """A TAP device called eth0 in the network this process is in."""
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH", b"eth0", IFF_TAP | IFF_NO_PI))
    return tap


def enter(path):
    """setns(): os.setns() came with Python 3.12."""
    import ctypes

    network = os.open(path, os.O_RDONLY)
    if ctypes.CDLL(None, use_errno=True).setns(network, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), f"setns to {path}")
    os.close(network)


def open_taps(pids):
    """Our own first, then one in the network of each process."""
    taps = [open_tap()]
    home = f"/proc/{os.getpid()}/ns/net"
    kept = os.open(home, os.O_RDONLY)
    for pid in pids:
        enter(f"/proc/{pid}/ns/net")
        taps.append(open_tap())
    enter(f"/proc/self/fd/{kept}")
    return taps


class Relay:
    """Learns which address is behind which device, as a switch does; packets that wait are a heap by time."""

    def __init__(self, taps, options):
        self.taps, self.options = taps, options
        self.random = random.Random(options.seed)
        self.behind = {}
        self.waiting, self.number = [], 0
        self.fates = {"sent": 0, "lost": 0, "repeated": 0, "reordered": 0}

    def happens(self, percent):
        return self.random.random() * 100 < percent

    def write(self, tap, frame):
        try:
            os.write(tap, frame)
        except OSError:  # the host is gone, or its queue is full: as on any cable
            self.fates["lost"] += 1

    def hold(self, seconds, tap, frame):
        self.number += 1
        heapq.heappush(self.waiting, (time.monotonic() + seconds, self.number, tap, frame))

    def carry(self, source, target, frame):
        if source == self.taps[0] or target == self.taps[0]:
            self.write(target, frame)
            return
        self.fates["sent"] += 1
        if self.happens(self.options.loss):
            self.fates["lost"] += 1
            return
        delay = self.options.delay / 1000
        if self.happens(self.options.reorder):
            self.fates["reordered"] += 1
            delay = max(4 * delay, 0.001)
        self.hold(delay, target, frame)
        if self.happens(self.options.repeat):
            self.fates["repeated"] += 1
            self.hold(delay, target, frame)

    def take(self, source):
        """All that the device has now."""
        while True:
            try:
                frame = os.read(source, FRAME)
            except OSError:
                return
            self.behind[frame[6:12]] = source
            target = self.behind.get(frame[:6])
            if target is not None and target != source:
                self.carry(source, target, frame)
            elif frame[0] & 1:
                for other in self.taps:
                    if other != source:
                        self.write(other, frame)

    def run(self):
        selector = selectors.DefaultSelector()
        for tap in self.taps:
            selector.register(tap, selectors.EVENT_READ)
        while True:
            now = time.monotonic()
            while self.waiting and self.waiting[0][0] <= now:
                _, _, tap, frame = heapq.heappop(self.waiting)
                self.write(tap, frame)
            patience = max(0, self.waiting[0][0] - now) if self.waiting else 1
            for key, _ in selector.select(patience):
                self.take(key.fd)


def main():
    parser = argparse.ArgumentParser()
    for name in ("delay", "loss", "repeat", "reorder"):
        parser.add_argument(f"--{name}", type=float, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("pid", type=int, nargs="+")
    options = parser.parse_args()
    relay = Relay(open_taps(options.pid), options)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    print("ready", flush=True)
    try:
        relay.run()
    finally:
        print(relay.fates, flush=True)


if __name__ == "__main__":
    main()
