# SPDX-License-Identifier: BSD-3-Clause
"""What hosts get through their network when all of them send to all at once: plain TCP, nothing of xep.

exchange.py NUMBER STREAMS BYTES ROUNDS ADDRESS..: on each host, with its NUMBER among the ADDRESSes, from 0. Between
two hosts there are STREAMS connections, and each carries BYTES in either direction in a round. Number 0 prints the
bytes a second that a host sends in the fastest round.
"""

import selectors
import socket
import sys
import time

PORT = 7700
CHUNK = bytes(256 * 1024)


def connect(number, streams, addresses):
    """A connection for each stream to each other host: the lower number listens."""
    listening = socket.create_server((addresses[number], PORT), backlog=1024)
    found = []
    for address in addresses[:number]:
        for _ in range(streams):
            found.append(reach(address))
    for _ in range(streams * (len(addresses) - number - 1)):
        found.append(listening.accept()[0])
    for connection in found:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setblocking(False)
    return found


def reach(address):
    for _ in range(600):
        try:
            return socket.create_connection((address, PORT))
        except ConnectionRefusedError:
            time.sleep(0.05)
    raise SystemExit(f"{address} does not listen")


def run_round(connections, count):
    """Sends and receives count bytes on each, all at once. A host that is done waits for the bytes of the others."""
    to_send, to_come = dict.fromkeys(connections, count), dict.fromkeys(connections, count)
    chooser = selectors.DefaultSelector()
    for connection in connections:
        chooser.register(connection, selectors.EVENT_READ | selectors.EVENT_WRITE)
    while chooser.get_map():
        for key, events in chooser.select():
            connection = key.fileobj
            if events & selectors.EVENT_WRITE and to_send[connection]:
                to_send[connection] -= connection.send(CHUNK[: to_send[connection]])
            if events & selectors.EVENT_READ and to_come[connection]:
                came = len(connection.recv(min(to_come[connection], len(CHUNK))))
                if came == 0:
                    raise SystemExit("a host has left")
                to_come[connection] -= came
            events = selectors.EVENT_READ * (to_come[connection] > 0) + selectors.EVENT_WRITE * (
                to_send[connection] > 0
            )
            chooser.modify(connection, events) if events else chooser.unregister(connection)


def main():
    number, streams, count, rounds = map(int, sys.argv[1:5])
    addresses = sys.argv[5:]
    connections = connect(number, streams, addresses)
    took = []
    for _ in range(rounds + 2):
        run_round(connections, 1)  # nobody is ahead
        begin = time.monotonic()
        run_round(connections, count)
        run_round(connections, 1)  # and the last has got its bytes
        took.append(time.monotonic() - begin)
    if number == 0:
        print(count * len(connections) / min(took[2:]))


main()
