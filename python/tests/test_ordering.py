# SPDX-License-Identifier: BSD-3-Clause
"""deep_ep on a CUDA device, as far as that can be seen without one: which stream waits for what, with streams that only
write down what they are told; rows by expert by operations of torch; what is refused."""

from __future__ import annotations

import contextlib
import gc
import sys
from typing import Any, Optional

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import deep_ep  # noqa: E402
from deep_ep import arguments, streams  # noqa: E402
from deep_ep import handles as by_expert  # noqa: E402
from deep_ep.core import NormalPool  # noqa: E402
from deep_ep.streams import DeviceOrdering, DeviceQueue, Slot  # noqa: E402
from xep import _ext  # noqa: E402

DEVICE = torch.device("cuda", 0)


class Stream:
    """Enqueues nothing. Its address is its place among all that there are."""

    device_index, device_type = 0, 1
    made: list[Stream] = []

    def __init__(self, name: str) -> None:
        self.name, self.marks, self.stream_id = name, 0, len(Stream.made)
        self.cuda_stream = self.stream_id
        self.ids = (self.stream_id, self.device_index, self.device_type)
        Stream.made.append(self)

    @staticmethod
    def called(name: str) -> Stream:
        return next(stream for stream in Stream.made if stream.name == name)


class Driver:
    """What the compiled module has of it; tells the log."""

    def __init__(self, log: list) -> None:
        self.log = log

    def stream_wait(self, device: int, waiter: int, other: int) -> None:
        self.log.append(f"{Stream.made[waiter].name} waits for {Stream.made[other].name}")

    def Event(self, device: int, stream: int) -> Event:
        return Event(Stream.made[stream], self.log)


class Event:
    def __init__(self, stream: Stream, log: list) -> None:
        self.log = log
        self.record(stream.cuda_stream)

    def record(self, stream: int) -> bool:
        recorded = Stream.made[stream]
        recorded.marks += 1
        self.name = f"event {recorded.marks} of {recorded.name}"
        return True

    def wait(self, stream: int) -> None:
        self.log.append(f"{Stream.made[stream].name} waits for {self.name}")


class Tensor:
    def __init__(self) -> None:
        self.recorded: list[str] = []

    def record_stream(self, stream: Stream) -> None:
        self.recorded.append(stream.name)


class Memory:
    """Of a slot."""


class Handle:
    def __init__(self) -> None:
        self._memory = Memory()


@pytest.fixture
def log(monkeypatch):
    """A device with a stream "compute" that is current, and one "comm" that a Buffer makes."""
    found: list[str] = []
    monkeypatch.setattr(Stream, "made", [])
    now = [Stream("compute")]

    def stream_of(*_: Any, stream_id: Optional[int] = None, **__: Any) -> Stream:
        return Stream("comm") if stream_id is None else Stream.made[stream_id]

    monkeypatch.setattr(torch.cuda, "Stream", stream_of)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    for name, value in {
        "getCurrentStream": lambda _device: now[-1].ids,
        "getCurrentRawStream": lambda _device: now[-1].cuda_stream,
        "setStream": lambda stream_id, device_index, device_type: now.append(Stream.made[stream_id]),
        "getDevice": lambda: 0,
        "isCurrentStreamCapturing": lambda: False,
    }.items():
        monkeypatch.setattr(torch._C, f"_cuda_{name}", value, raising=False)
    for module in (streams, deep_ep.utils.event):
        monkeypatch.setattr(module, "_ext", Driver(found))
    found_now[:] = [now]
    return found


found_now: list[list[Stream]] = [[]]


@contextlib.contextmanager
def other_stream():
    found_now[0].append(Stream("other"))
    yield
    found_now[0].append(Stream.called("compute"))


def test_the_program_waits(log):
    """As it does anyway, the operation is on its stream: nobody waits, nothing is recorded on another one."""
    given, queue = Tensor(), DeviceQueue(DEVICE)
    for _ in range(2):
        with queue.ordering(None, False, False) as ordering:
            log.append("work")
            event = ordering.end(None, given, None)
    assert log == ["work", "work"] and event.event is None and given.recorded == []


def test_one_operation_after_the_other(log):
    """On another stream than the last one, it waits for that; tensors may be of either from then on."""
    given, queue = Tensor(), DeviceQueue(DEVICE)
    with queue.ordering(None, False, False) as ordering:
        ordering.end(None, given)
    with other_stream(), queue.ordering(None, False, False) as ordering:
        log.append("work")
        ordering.end(None, given, None)
    with queue.ordering(None, False, False) as ordering:
        ordering.end(None, given)
    assert log == ["other waits for event 1 of compute", "work", "compute waits for event 1 of other"]
    assert given.recorded == ["other", "compute"]


def test_an_event(log):
    """It is of the stream that communicates; whoever waits for it is the stream that is current then."""
    given, queue = Tensor(), DeviceQueue(DEVICE)
    with queue.ordering(None, True, True) as ordering:
        event = ordering.end(None, given)
    assert log == ["comm waits for compute"] and given.recorded == ["compute", "comm"]
    with event:
        log.append("work")
    assert log[1:] == ["work", "compute waits for event 1 of comm"]


def test_previous_event(log):
    """Alone is waited for."""
    queue, previous = DeviceQueue(DEVICE), deep_ep.Buffer.capture()
    with queue.ordering(previous, True, False) as ordering:
        event = ordering.end(None)
    assert log == ["comm waits for event 1 of compute"]
    del log[:]
    with queue.ordering(event, False, False) as ordering:
        ordering.end(None)
    assert log == ["comm waits for event 1 of comm", "compute waits for comm"]


def test_an_event_alone_after_operations_of_the_program(log):
    """What the program has enqueued behind the event is not waited for, and what it has received is gone by then."""
    queue, handle = DeviceQueue(DEVICE), None
    for _ in range(5):
        with queue.ordering(None, False, False):
            handle = Handle()
            Slot(queue, handle)
    previous, last = deep_ep.Buffer.capture(), Stream.called("compute").marks
    with queue.ordering(previous, True, False):
        queue.free_slots()
    waited = [int(one.split()[4]) for one in log]
    assert len(log) == 2 and max(waited) == last and handle is not None


def test_an_error(log):
    """What was enqueued until then comes before what the program does next."""
    queue = DeviceQueue(DEVICE)
    with pytest.raises(ValueError, match="wrong"):
        with queue.ordering(deep_ep.Buffer.capture(), True, False):
            raise ValueError("wrong")
    assert log[-1] == "compute waits for comm" and found_now[0][-1].name == "compute"


def test_slots_that_go_back(log):
    """Before anybody writes there again, whoever read the rows until their last tensor went is waited for."""
    queue, handle = DeviceQueue(DEVICE), Handle()
    with queue.ordering(None, True, False) as ordering:
        Slot(queue, handle)
        ordering.end(None)
    queue.free_slots()
    del log[:]
    with other_stream():
        del handle
        gc.collect()
    with queue.ordering(deep_ep.Buffer.capture(), True, False):
        queue.free_slots()
    assert log[0] == "comm waits for event 2 of compute"
    assert sorted(log[1:]) == ["comm waits for event 1 of compute", "comm waits for event 1 of other"]
    queue.free_slots()
    assert len(log) == 3, "once"


def test_slots_that_go_back_on_the_stream_of_the_operations(log):
    """What reads them there comes before the next operation, or is behind what that waits for."""
    queue, handle = DeviceQueue(DEVICE), Handle()
    with queue.ordering(None, False, False):
        Slot(queue, handle)
    del handle
    with queue.ordering(None, False, False):
        queue.free_slots()
    assert log == [] and Stream.called("compute").marks == 3
    with other_stream(), queue.ordering(None, False, False):
        queue.free_slots()
    assert log == ["other waits for event 3 of compute"]


def test_calls_of_python(log):
    """In the common case the host has to be done before the device is."""
    queue, handle, calls = DeviceQueue(DEVICE), None, []
    ordering = queue.ordering(None, False, False)

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename == streams.__file__:
            calls.append(frame.f_code.co_name)

    for _ in range(3):
        sys.setprofile(note)
        try:
            with ordering:
                handle = Handle()
                Slot(queue, handle)
            handle = None
        finally:
            sys.setprofile(None)
    assert handle is None and calls[-4:] == ["__enter__", "__init__", "__exit__", "_free"]


def test_slots_that_a_dispatch_takes(log):
    """Are given back before the stream comes after what reads them."""
    calls: list = []

    class Buffer:
        def _make_room(self, cached):
            calls.append(f"parks, but not {cached}")

        def dispatch(self, *_, **__):
            calls.append("dispatches")
            return Handle()

    pool = NormalPool.__new__(NormalPool)
    pool.on, pool.queue = DEVICE, DeviceQueue(DEVICE)
    pool.queue.free_slots = lambda: calls.append("waits for readers")
    pool._send(Buffer(), True, None, None, None, dict(cached="this"))
    assert calls == ["parks, but not this", "waits for readers", "dispatches"]


def test_slots_that_a_handle_keeps(log):
    """When the last tensor went is found by the next operation: nothing later has to be waited for."""
    queue, handle = DeviceQueue(DEVICE), Handle()
    with queue.ordering(None, True, False) as ordering:
        slot = Slot(queue, handle)
        ordering.end(None)
    tensor = handle._memory  # refers to it, as a tensor does
    assert slot.is_viewed()
    with queue.ordering(None, True, False):
        pass
    del tensor
    assert not slot.is_viewed()
    for _ in range(2):
        with queue.ordering(None, True, False):
            pass
    deep_ep.EventHandle()
    del log[:], handle
    queue.free_slots()
    assert log == ["compute waits for event 1 of compute"]


def test_slots_that_a_handle_keeps_on_the_stream_of_the_operations(log):
    """What comes after an event alone does not wait for what is enqueued when the last tensor is found gone, by the
    first operation on another stream."""
    queue, handle, early = DeviceQueue(DEVICE), Handle(), Handle()
    with queue.ordering(None, False, False):
        Slot(queue, early)
    with queue.ordering(None, False, False):
        Slot(queue, handle)
    assert Stream.called("compute").marks == 2
    with queue.ordering(deep_ep.Buffer.capture(), True, False):
        queue.free_slots()
    assert log == ["comm waits for event 2 of compute", "comm waits for event 3 of compute"]
    del log[:], handle, early
    queue.free_slots()
    assert sorted(log) == ["compute waits for event 4 of compute", "compute waits for event 5 of compute"]


def test_slots_that_go_back_on_another_stream(log):
    """Operations are all on one stream, and tensors are read on another one until they go."""
    queue, handle = DeviceQueue(DEVICE), Handle()
    with queue.ordering(None, False, False):
        Slot(queue, handle)
    with other_stream():
        del handle
    with queue.ordering(None, False, False):
        queue.free_slots()
    assert "compute waits for event 1 of other" in log and not any(one.startswith("other") for one in log)


def test_a_slot_that_is_looked_at_again(log):
    queue, handle = DeviceQueue(DEVICE), Handle()
    with queue.ordering(None, True, False):
        slot = Slot(queue, handle)
    with queue.ordering(None, True, False):
        pass
    slot.look_again()
    del log[:], handle
    queue.free_slots()
    assert log == ["compute waits for event 2 of compute"]


def test_a_hook(log):
    """Both phases are on the stream of the call, whatever is current when the hook is called."""
    queue = DeviceQueue(DEVICE)
    with DeviceOrdering(queue, False) as hooked:
        assert hooked.end(None).event is None and not hooked.wait and hooked.stream.name == "compute"
    assert log == []


def test_events_of_a_program_without_a_device():
    assert not torch.cuda.is_initialized()
    event = deep_ep.EventHandle()
    assert event.of_stream is None
    event.current_stream_wait()
    event.synchronize()


def test_cpu_tensors_after_an_event_of_a_device(monkeypatch):
    waited = []
    event = deep_ep.EventHandle()
    event.of_stream = type("Event", (), {"synchronize": lambda self: waited.append(True)})()
    assert deep_ep.utils.event.request_of(deep_ep.EventOverlap(event)) is None and waited == [True]


@pytest.mark.parametrize("alignment", [1, 4])
@pytest.mark.parametrize("rows, topk, local", [(40, 4, 3), (0, 2, 2), (7, 1, 5), (9, 3, 1)])
def test_rows_by_expert(rows, topk, local, alignment):
    """By operations of torch as by numpy, bit by bit; -0, infinities and NaN too."""
    generator = torch.Generator().manual_seed(rows)
    idx = torch.topk(torch.rand((rows, max(topk, local) + 2), generator=generator), topk, dim=1, sorted=False).indices
    idx[idx >= local] = -1
    counts = [int((idx == e).sum()) for e in range(local)]
    total = sum(-(-n // alignment) * alignment for n in counts)
    slots, _, _ = _ext.expert_expand(idx, counts, alignment, None, None, False)
    ours, theirs = (by_expert.Routed.__new__(by_expert.Routed) for _ in range(2))
    for found, on, its in ((ours, torch.device("cpu"), slots), (theirs, DEVICE, slots.to(torch.int32))):
        found.__dict__.update(on=on, slots=its, rows=rows, expert_alignment=alignment, _counts=counts)
    x = torch.randn((rows, 6), generator=generator).bfloat16()
    x[::3, 0], x[1::3, 1], x[2::3, 2] = -0.0, float("inf"), float("nan")
    for source in (x, x.view(torch.uint8), torch.arange(float(2 * rows)).view(rows, 2)):
        found = [torch.full((total, source.shape[1]), 7).to(source.dtype) for _ in range(2)]
        for places, to in zip((ours, theirs), found):
            places.spread(to, source, True)
        assert torch.equal(found[0].view(torch.uint8), found[1].view(torch.uint8))
    weights = torch.rand((rows, topk), generator=generator)
    found = [torch.zeros(total) for _ in range(2)]
    ours.spread(found[0], weights, True, each=True)
    theirs.spread(found[1], weights, True, each=True)
    assert torch.equal(*found) and torch.equal(ours.fold_selections(found[0]), theirs.fold_selections(found[0]))
    expanded = torch.randn((total, 5), generator=generator).bfloat16()
    expanded[::2, 1] = -0.0
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for columns in (by_expert.ALL, *(slice(k, k + 1) for k in range(topk))):
            here = [sums.fold((expanded * 3).to(dtype), columns)[0].view(torch.uint8) for sums in (ours, theirs)]
            assert torch.equal(*here)


def test_sums_of_halves():
    """Of all pairs of some numbers: subnormal ones, the largest, infinities, ties."""
    some = torch.arange(0, 1 << 16, 331, dtype=torch.int32).to(torch.int16).view(torch.float16)
    some = some[~some.isnan()]
    pairs = torch.cartesian_prod(some, some).t().reshape(-1, 1)
    slots = torch.arange(len(pairs)).view(2, -1).t().contiguous()
    found = _ext.expert_sum(pairs, slots)
    want = (pairs[: len(slots)].float() + pairs[len(slots) :].float()).half()
    assert bool(((found == want) | (found.isnan() & want.isnan())).all())


def test_what_is_refused():
    x = torch.zeros((2, 3))
    with pytest.raises(TypeError, match=r"x: expected a cuda:0 tensor float32 \[2, any\], got float32 .* on cpu"):
        arguments.check("x", x, 1, arguments.FLOAT, 2, -1)
    with pytest.raises(TypeError, match=r"x: expected a CPU or CUDA tensor \[any, any\], got float32 .* on meta"):
        arguments.check("x", x.to("meta"), arguments.ANYWHERE, arguments.ANY, -1, -1)
    with pytest.raises(ValueError, match=r"x: expected a contiguous tensor, got strides \(1, 3\) of shape \[3, 2\]"):
        arguments.check("x", x.t(), 0, arguments.FLOAT, 3, 2)
    for odd in (x, x.bool(), x.to(torch.int16), torch.nn.Parameter(x)):
        assert arguments.check("x", odd, arguments.ANYWHERE, arguments.ANY, 2, 3) == (0, 2, 3)
    assert arguments.check_strided("x", x.t(), 0, arguments.FLOAT, -1, 2) == (0, 3, 2)
