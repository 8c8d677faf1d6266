# SPDX-License-Identifier: BSD-3-Clause
"""An allgather of the tests' own, over sockets: tests make dozens of groups in one process, and each exchange over PMIx
costs more the more there were before it."""

from __future__ import annotations

import socket
import struct
import time

_TIMEOUT = 60.0  # seconds, of every wait


def _receive(connection: socket.socket) -> bytes:
    """One message: its length, then itself."""
    (left,) = struct.unpack("<q", _exactly(connection, 8))
    return _exactly(connection, left)


def _exactly(connection: socket.socket, left: int) -> bytes:
    parts = []
    while left:
        parts.append(connection.recv(left))
        left -= len(parts[-1])
        if not parts[-1]:
            raise ConnectionError("a rank has left")
    return b"".join(parts)


def _send(connection: socket.socket, message: bytes) -> None:
    connection.sendall(struct.pack("<q", len(message)) + message)


class Meeting:
    """A communicator as xep.Group takes it: rank 0 listens under a name, the others come."""

    def __init__(self, name: str, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self._others: list[socket.socket] = []  # of rank 0, by rank; elsewhere rank 0 alone
        address = f"\0{name}"  # abstract: leaves no file behind
        if rank == 0:
            self._await(address)
        else:
            self._others = [self._join(address)]

    def _await(self, address: str) -> None:
        came: dict[int, socket.socket] = {}
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(address)
            listening.listen(self.size)
            listening.settimeout(_TIMEOUT)
            while len(came) < self.size - 1:
                connection = listening.accept()[0]
                connection.settimeout(_TIMEOUT)
                came[int(_receive(connection))] = connection
        self._others = [came[rank] for rank in sorted(came)]

    def _join(self, address: str) -> socket.socket:
        deadline = time.monotonic() + _TIMEOUT
        while True:
            connection = socket.socket(socket.AF_UNIX)
            connection.settimeout(_TIMEOUT)
            try:
                connection.connect(address)
                break
            except ConnectionRefusedError:  # rank 0 does not listen yet
                connection.close()
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
        _send(connection, str(self.rank).encode())
        return connection

    def allgather(self, data: bytes) -> list[bytes]:
        """What every rank gives, of any length, in rank order."""
        if self.rank != 0:
            _send(self._others[0], data)
            return [_receive(self._others[0]) for _ in range(self.size)]
        messages = [data, *[_receive(other) for other in self._others]]
        for other in self._others:
            for message in messages:
                _send(other, message)
        return messages

    def close(self) -> None:
        for other in self._others:
            other.close()
