# SPDX-License-Identifier: BSD-3-Clause
"""One operation in flight."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Generic, Optional, TypeVar

from ._lib import last_error, lib
from .errors import Status, XepError, error_of

if TYPE_CHECKING:
    from .buffer import Buffer

Result = TypeVar("Result")


class Request(Generic[Result]):
    """An operation that was begun: test it, wait for it. Progress is made inside these calls.

    The buffer keeps the request, and with it every array of the operation, until it is done; a request that
    nobody waits for is looked at when the next operation begins.
    """

    def __init__(
        self, buffer: "Buffer", request: int, result: Result, arrays: tuple, failed: Callable[[XepError], None]
    ) -> None:
        self._buffer = buffer
        self._request: Optional[int] = request
        self._result = result
        self._arrays: Any = arrays
        self._failed: Any = failed
        self._error: Optional[XepError] = None

    @property
    def result(self) -> Result:
        """What wait() returns; its contents are here when the request is done."""
        return self._result

    def done(self) -> bool:
        """Whether it has ended, well or not. Makes progress, does not block."""
        if self._request is not None:
            status = lib.xep_request_test(self._request)
            if status == Status.INPROGRESS:
                return False
            self._settle(status)
        return True

    def wait(self) -> Result:
        """Blocks until the operation is done or its deadline has passed. Its result, or its error; again if called again."""
        if self._request is not None:
            self._settle(lib.xep_request_wait(self._request))
        if self._error is not None:
            raise self._error
        return self._result

    def wait_counts(self) -> Result:
        """Of a dispatch: blocks until this rank's rows are counted, or as wait(). ``result.recv`` then has counts and
        arrays; what is in the arrays may be read after wait()."""
        if self._request is not None:
            status = lib.xep_request_wait_counts(self._request)
            if status < 0:
                self._settle(status)
        if self._error is not None:
            raise self._error
        return self._result

    def _settle(self, status: int) -> None:
        if status < 0:
            self._error = error_of(status, last_error())
            self._failed(self._error)
        lib.xep_request_free(self._request)
        self._forget()

    def _forget(self) -> None:
        self._request = None
        self._arrays = self._failed = None
        self._buffer._pending.discard(self)

    def _end(self, error: XepError) -> None:
        """The buffer ended it: nothing of the library is left to ask."""
        if self._request is not None:
            self._error = error
            self._forget()

    def _pointer(self) -> Optional[int]:
        """For an operation that is to begin after this one; None when it has ended well."""
        if self._request is None and self._error is not None:
            raise self._error
        return self._request
