# SPDX-License-Identifier: BSD-3-Clause
"""What Buffer, Handle and Received are made of, in Python; the compiled module _fast has the same, faster."""

from __future__ import annotations

import ctypes
import weakref
from typing import Any, Optional

from . import _structs
from ._lib import lib

_release = lib.xep_handle_release


class SlotMemory(ctypes.Array):
    """The buffer's memory, held for one handle: what every array of its rows is based on."""

    _type_ = ctypes.c_ubyte
    _length_ = 0
    handle: int  # address of the library's handle, or 0
    owner: Any  # weak reference of the Handle that uses it, or None
    _ended: list  # of the Slots

    def __del__(self) -> None:
        if self.handle:
            self._ended.append(self.handle)


class Slots:
    """The slots in use of one buffer.

    A slot goes back when the last reference to its memory does. That may happen on any thread, also inside a call of the
    library, so it is only noted then, and told to the library by the next operation.
    """

    def __init__(self, base: int, bytes: int) -> None:
        self._base = base
        self._ended: list[int] = []  # handles whose last array is gone
        self._held: dict[int, "weakref.ref[SlotMemory]"] = {}
        kind = {"_length_": bytes, "_type_": ctypes.c_ubyte, "handle": 0, "owner": None, "_ended": self._ended}
        self._type: Any = type("SlotMemory", (SlotMemory,), kind)

    def drain(self) -> None:
        """Tells the library what has ended."""
        while self._ended:
            handle = self._ended.pop()
            self._held.pop(handle, None)
            _release(handle)

    def hold(self, handle: int) -> SlotMemory:
        """Memory that is released with its last reference."""
        memory = self.whole()
        memory.handle = handle
        self._held[handle] = weakref.ref(memory)
        return memory

    def whole(self) -> SlotMemory:
        """Memory of no handle."""
        return self._type.from_address(self._base)

    def _alive(self) -> list:
        """Memory, and the Handle that uses it or None."""
        found = [memory() for memory in list(self._held.values())]
        return [(memory, memory.owner and memory.owner()) for memory in found if memory is not None]

    def owners(self) -> list:
        """The Handles that use a slot."""
        return [owner for _, owner in self._alive() if owner is not None]

    def orphans(self) -> int:
        """How many slots only arrays still use."""
        return sum(owner is None for _, owner in self._alive())

    def forget(self) -> None:
        """Slots end without the library: the memory stays."""
        for memory, _ in self._alive():
            memory.handle = 0
        self._held.clear()
        self._ended.clear()

    def __len__(self) -> int:
        return len(self._held)


class BufferBase:
    """The part of a Buffer that is used in every step."""

    _buffer: Optional[int]
    _slots: Any
    _pending: set

    def _speed_up(self, *_known: Any) -> None:
        """Only the compiled module has use for it."""


class HandleBase:
    """The part of a Handle that is used in every step."""

    _buffer: Any
    _adapter: Any
    _native: Any
    _rows: int  # received, of an asynchronous dispatch of the compiled module
    _shown = None

    def __init__(self) -> None:
        self._slot_memory: Optional[SlotMemory] = None
        self._received: dict = {}
        self._struct: Any = None

    @property
    def _memory(self) -> Optional[SlotMemory]:
        return self._slot_memory

    @_memory.setter
    def _memory(self, memory: Optional[SlotMemory]) -> None:
        if self._slot_memory is not None:
            self._slot_memory.owner = None
        if memory is not None:
            memory.owner = weakref.ref(self)
        self._slot_memory = memory


class ReceivedBase:
    """The part of Received that is used in every step."""

    __slots__ = ("_handle", "_recv", "_adapter", "_native", "_cache", "__weakref__")
    _recv: _structs.Recv

    def __init__(self) -> None:
        self._cache: dict[str, Any] = {}

    def _forget(self) -> None:
        """The handle ends: the next dispatch in its slot writes over the library's counts, so they become a copy."""
        self._recv = _structs.Recv.from_buffer_copy(self._recv)
        self._cache.clear()
