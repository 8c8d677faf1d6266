# SPDX-License-Identifier: BSD-3-Clause
"""Memory and streams of a CUDA device by its driver alone, or by the stand-in for it (test/cuda); tensors of one."""

from __future__ import annotations

import contextlib
import ctypes
import functools
from typing import Any, Iterator, Optional

import numpy as np

_NON_BLOCKING = 1


class Driver:
    """The device of a rank, made current in this thread. None of these calls waits, but get()."""

    def __init__(self, rank: int) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        count, context = ctypes.c_int(), ctypes.c_void_p()
        self._call("cuInit", 0)
        self._call("cuDeviceGetCount", ctypes.byref(count))
        self.device = rank % count.value
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self.device)
        self._call("cuCtxSetCurrent", context)

    def _call(self, name: str, *args: Any) -> None:
        result = getattr(self._library, name)(*args)
        assert result == 0, f"{name} returned {result}"

    def stream(self) -> int:
        made = ctypes.c_void_p()
        self._call("cuStreamCreate", ctypes.byref(made), _NON_BLOCKING)
        assert made.value
        return made.value

    def wait(self, stream: Optional[int] = None) -> None:
        self._call("cuStreamSynchronize", ctypes.c_void_p(stream))

    def allocate(self, count: int) -> int:
        made = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(made), ctypes.c_size_t(max(count, 1)))
        return made.value

    def free(self, address: int) -> None:
        self._call("cuMemFree_v2", ctypes.c_uint64(address))

    def put(self, address: int, array: np.ndarray, stream: Optional[int] = None) -> None:
        if array.nbytes:
            source = ctypes.c_void_p(array.ctypes.data)
            count = ctypes.c_size_t(array.nbytes)
            self._call("cuMemcpyHtoDAsync_v2", ctypes.c_uint64(address), source, count, ctypes.c_void_p(stream))
        self.wait(stream)  # the array may go

    def get(self, array: Any, stream: Optional[int] = None) -> np.ndarray:
        """What an array of device memory holds, in the order of a stream."""
        told = array.__cuda_array_interface__
        shape, dtype = told["shape"], np.dtype(told["typestr"])
        strides = told["strides"] or np.empty(shape, dtype).strides
        if 0 in shape:
            return np.empty(shape, dtype)
        span = dtype.itemsize + sum((n - 1) * stride for n, stride in zip(shape, strides))
        room = np.empty(span, np.uint8)
        to, source = ctypes.c_void_p(room.ctypes.data), ctypes.c_uint64(told["data"][0])
        self._call("cuMemcpyDtoHAsync_v2", to, source, ctypes.c_size_t(span), ctypes.c_void_p(stream))
        self.wait(stream)
        return np.ndarray(shape, dtype, room, 0, strides).copy()


@functools.cache
def driver_of(rank: int) -> Optional[Driver]:
    """None: there is no driver, or no device."""
    try:
        return Driver(rank)
    except (OSError, AssertionError, ZeroDivisionError):
        return None


class Array:
    """An array in device memory, as other packages have them: all that is known of it is its interface."""

    def __init__(self, driver: Driver, like: np.ndarray, stream: Optional[int] = None) -> None:
        self._driver, self._address = driver, driver.allocate(like.nbytes)
        driver.put(self._address, np.ascontiguousarray(like), stream)
        self.__cuda_array_interface__ = {
            "shape": like.shape,
            "strides": None,
            "typestr": like.dtype.str,
            "data": (self._address, False),
            "version": 3,
        }

    def columns(self, count: int) -> "View":
        """The first ones of each row."""
        told = self.__cuda_array_interface__
        rows, width = told["shape"]
        step = np.dtype(told["typestr"]).itemsize
        return View(dict(told, shape=(rows, count), strides=(width * step, step)), self)

    def __del__(self) -> None:
        self._driver.free(self._address)


class View:
    def __init__(self, told: dict, base: Any) -> None:
        self.__cuda_array_interface__ = told
        self._base = base


# ---- tensors: where torch has a device ----

LONG = 300_000_000  # cycles that hold up a stream: about 0.15 s


def rank_device(rank: int) -> Any:
    """The device of a rank, made torch's current one; several ranks may have the same."""
    import torch

    found = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(found)
    return found


def runtime_error() -> int:
    """What the CUDA runtime of torch would tell this thread next, for a call that somebody made before; 0: nothing."""
    with open("/proc/self/maps", encoding="ascii", errors="replace") as maps:
        path = next(line.split()[-1] for line in maps if "/libcudart.so" in line)
    return ctypes.CDLL(path).cudaPeekAtLastError()


def late(tensor: Any) -> Any:
    """On the device, where it is long in coming: nonsense until then."""
    import torch

    there = torch.full(tensor.shape, 0x7F, dtype=torch.uint8).to(tensor.dtype).cuda()
    real = tensor.cuda()
    torch.cuda._sleep(LONG // 10)
    return there.copy_(real)


def bits(tensor: Any) -> Any:
    import torch

    return tensor.cpu().clone(memory_format=torch.contiguous_format).view(torch.uint8)


@contextlib.contextmanager
def held_up(times: int) -> Iterator[None]:
    """The streams of all ranks are held up, times LONG, and still are at the end: nothing inside waits for them."""
    import torch
    from conftest import meet  # which imports this file

    torch.cuda.synchronize()
    meet()
    torch.cuda._sleep(times * LONG)
    end = torch.cuda.Event()
    end.record()
    yield
    assert not end.query(), "a call has waited for the program's stream"
