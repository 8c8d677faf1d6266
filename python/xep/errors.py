# SPDX-License-Identifier: BSD-3-Clause
"""Statuses of the library as exceptions: each carries the status and the library's sentence."""

from __future__ import annotations

import enum


class Status(enum.IntEnum):
    """``xep_status_t``: the same names and values, without the prefix."""

    OK = 0
    INPROGRESS = 1
    ERR_INVALID = -1
    ERR_NO_MEMORY = -2
    ERR_UNSUPPORTED = -3
    ERR_MISMATCH = -4
    ERR_BUSY = -5
    ERR_OVERFLOW = -6
    ERR_TIMEOUT = -7
    ERR_PEER = -8
    ERR_BOOT = -9
    ERR_TRANSPORT = -10
    ERR_PLUGIN = -11
    ERR_PROTOCOL = -12
    ERR_ABORTED = -13
    ERR_BROKEN = -14
    ERR_FUNCTION = -15


class XepError(RuntimeError):
    """An error of the library: ``status``, and ``reason``, its sentence."""

    status: Status
    reason: str

    def __init__(self, status: int, reason: str) -> None:
        self.status = Status(status)
        self.reason = reason
        super().__init__(f"XEP_{self.status.name}: {reason}")


class InvalidError(XepError, ValueError):
    """XEP_ERR_INVALID: an argument; nothing was begun."""


class NoMemoryError(XepError, MemoryError):
    """XEP_ERR_NO_MEMORY."""


class UnsupportedError(XepError, NotImplementedError):
    """XEP_ERR_UNSUPPORTED: the mode does not do this."""


class MismatchError(XepError):
    """XEP_ERR_MISMATCH: ranks disagree on a collective parameter; every rank gets it, nothing was moved."""


class BusyError(XepError):
    """XEP_ERR_BUSY: every slot holds a handle, or received rows that are still looked at."""


class CapacityError(XepError):
    """XEP_ERR_OVERFLOW: some rank has no room for its rows; every rank gets it, nothing was moved.

    ``rows`` are the rows sent to this rank, or None where nobody counted them.
    """

    rows: int | None = None


class DeadlineError(XepError, TimeoutError):
    """XEP_ERR_TIMEOUT: the sentence says what was waited for, and which ranks did not come."""


class PeerError(XepError, ConnectionError):
    """XEP_ERR_PEER: a rank is dead."""


class BootError(XepError):
    """XEP_ERR_BOOT: no way to the other ranks; the sentence has the remedy."""


class AbortedError(XepError):
    """XEP_ERR_ABORTED: the group was aborted, or the operation ended by reset or close."""


class BrokenError(XepError):
    """XEP_ERR_BROKEN: the buffer needs reset() after an earlier error."""


class FunctionError(XepError):
    """XEP_ERR_FUNCTION: the expert function of a rank that serves failed; the sentence names the rank."""


_CLASSES: dict[int, type[XepError]] = {
    Status.ERR_INVALID: InvalidError,
    Status.ERR_NO_MEMORY: NoMemoryError,
    Status.ERR_UNSUPPORTED: UnsupportedError,
    Status.ERR_MISMATCH: MismatchError,
    Status.ERR_BUSY: BusyError,
    Status.ERR_OVERFLOW: CapacityError,
    Status.ERR_TIMEOUT: DeadlineError,
    Status.ERR_PEER: PeerError,
    Status.ERR_BOOT: BootError,
    Status.ERR_ABORTED: AbortedError,
    Status.ERR_BROKEN: BrokenError,
    Status.ERR_FUNCTION: FunctionError,
}


def error_of(status: int, reason: str) -> XepError:
    """The exception for a negative status."""
    return _CLASSES.get(status, XepError)(status, reason)
