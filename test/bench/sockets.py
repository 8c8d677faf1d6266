# SPDX-License-Identifier: BSD-3-Clause
"""What cables can do: sends bytes through a plain socket to each other host, while as many come from there.

sockets.py HOST HOSTS PLACE BYTES

One process of each PLACE runs on each of 10.77.0.1 .. 10.77.0.HOSTS (test/rig/hosts.bash); it exchanges BYTES with that
of the same PLACE on each other host, 18 times, and prints the median of the last 15, in milliseconds.
"""

import socket
import statistics
import sys
import threading
import time

PORT, TURNS, WARMUP, BLOCK = 5000, 18, 3, 1 << 20


def connect(host, hosts, place):
    """Sockets to all other hosts: to those before this one it connects, and from those behind it accepts."""
    listener = socket.create_server((f"10.77.0.{host}", PORT + place), backlog=hosts)
    peers = []
    for other in range(1, host):
        deadline = time.monotonic() + 20
        while True:
            try:
                peers.append(socket.create_connection((f"10.77.0.{other}", PORT + place)))
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
    peers += [listener.accept()[0] for _ in range(host, hosts)]
    for peer in peers:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return peers


def send(peer, left, block):
    while left:
        peer.sendall(block[: min(left, BLOCK)])
        left -= min(left, BLOCK)


def receive(peer, left, block):
    while left:
        came = peer.recv_into(block, min(left, BLOCK))
        if came == 0:
            raise ConnectionError("a peer has left")
        left -= came


def exchange(peers, count, blocks):
    """A thread for each direction of each socket, as none may wait for another; all begin when all peers are there."""
    for peer in peers:
        peer.sendall(b"x")
    for peer in peers:
        peer.recv(1)
    begin = time.perf_counter()
    jobs = [threading.Thread(target=send, args=(peer, count, blocks[0])) for peer in peers]
    jobs += [threading.Thread(target=receive, args=(peer, count, blocks[1 + i])) for i, peer in enumerate(peers)]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    return (time.perf_counter() - begin) * 1e3


def main():
    host, hosts, place, count = (int(word) for word in sys.argv[1:5])
    peers = connect(host, hosts, place)
    blocks = [memoryview(bytearray(BLOCK)) for _ in range(hosts)]
    took = [exchange(peers, count, blocks) for _ in range(TURNS)]
    print(f"{statistics.median(took[WARMUP:]):.2f}\n", end="", flush=True)  # others write to the same file


main()
