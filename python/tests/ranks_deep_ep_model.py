# SPDX-License-Identifier: BSD-3-Clause
"""deep_ep as programs written for DeepEP take it: tuples, nodes, the inner object, kinds of errors, events."""

from __future__ import annotations

import copy
import os
import pickle

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
from conftest import communicator  # noqa: E402
from low_latency_world import World as LowLatencyWorld  # noqa: E402
from low_latency_world import finish  # noqa: E402
from normal_world import TOKENS, TOPK, layout_arguments, make_world, rows_of  # noqa: E402
from torch.utils import _pytree as pytree  # noqa: E402

import deep_ep  # noqa: E402


@pytest.fixture
def world(buffer_of):
    return make_world(buffer_of(), ragged=False)


def node_ranks(size: int) -> int:
    """Ranks of a node, by what the test was told."""
    return int(os.environ.get("XEP_NODE_RANKS", "0")) or size


def node_count(size: int) -> int:
    return -(-size // node_ranks(size))


def dispatch(world, call: str = "dispatch", **options):
    """(what dispatch returned, this rank's rows)"""
    idx, weights = world.topk_idx[world.rank], world.weights[world.rank]
    layout = layout_arguments(world.buffer.get_dispatch_layout(idx, world.experts))
    x = rows_of("random", world.rank, len(idx))
    config = deep_ep.Config(6)
    return getattr(world.buffer, call)(x, topk_idx=idx, topk_weights=weights, config=config, **layout, **options), x


def summed(world, x: torch.Tensor) -> torch.Tensor:
    return (x.float() * world.in_rank(world.rank).sum(1, keepdim=True)).bfloat16()


# ---- tuples ----


def added(handle):
    return (handle + (7,))[:-1]


def radded(handle):
    return ((7,) + handle)[1:]


COPIES = {
    "tuple": tuple,
    "slice": lambda handle: handle[:],
    "added": added,
    "added behind": radded,
    "starred": lambda handle: (*handle,),
    "rebuilt": lambda handle: type(handle)(item for item in handle),
    "pickled": lambda handle: pickle.loads(pickle.dumps(handle)),
    "deep copy": copy.deepcopy,
}


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("worst", [False, True])
def test_tuples_combine_and_dispatch(world, how, worst):
    """What is made of a handle is a plain tuple of its tensors, by which one can combine and dispatch as well."""
    several = node_count(world.size) > 1
    options = dict(num_worst_tokens=world.size * TOKENS) if worst else {}
    (recv_x, _, row_weights, _, handle, _), x = dispatch(world, **options)
    plain = COPIES[how](handle)
    assert isinstance(handle, tuple) and type(plain) is tuple and len(plain) == len(handle) == (10 if several else 6)
    assert all(torch.equal(one, two) for one, two in zip(handle, plain)), "the same items"
    combined, back, _ = world.buffer.combine(recv_x, plain, topk_weights=row_weights)
    assert torch.equal(combined, summed(world, x))
    assert torch.equal(back, torch.where(world.topk_idx[world.rank] >= 0, world.weights[world.rank], 0.0))
    again, *rest = world.buffer.dispatch(-x, handle=plain)
    rows = len(world.sources())
    assert again.shape == recv_x.shape and torch.equal(again[:rows], -recv_x[:rows]) and rest[:4] == [None] * 4


def test_handles_stay_whole(world):
    """A tree, and a shallow copy, give the handle back: with its slot."""
    (recv_x, _, _, _, handle, _), _ = dispatch(world)
    leaves, spec = pytree.tree_flatten((recv_x, handle))
    assert len(leaves) == 2 and pytree.tree_unflatten(leaves, spec)[1] is handle
    assert copy.copy(handle) is handle and handle == tuple(handle) and handle in (1, handle)
    assert handle[0] is handle[0] and handle[-1] is handle[len(handle) - 1] and handle.index(handle[0]) == 0
    with pytest.raises(IndexError):
        handle[len(handle)]
    (_, _, _, _, other, _), _ = dispatch(world)
    assert hash(handle) != hash(other)


def test_wrong_tuples(world):
    (recv_x, _, _, _, handle, _), _ = dispatch(world)
    for wrong, error, text in (
        (handle[:-1], ValueError, f"handle: expected the {len(handle)} tensors that dispatch returned, got"),
        ((1,) * len(handle), TypeError, "handle: is_token_in_rank: expected a CPU tensor bool .any"),
        ([*handle], TypeError, "handle: expected what dispatch returned, got list"),
    ):
        with pytest.raises(error, match=text):
            world.buffer.combine(recv_x, wrong)


def test_low_latency_handles_are_tuples(buffer_of):
    world = LowLatencyWorld(buffer_of(low_latency_mode=True))
    recv_x, _, handle, _, _ = world.dispatch(use_fp8=False)
    src_info, layout_range, most, hidden, experts = handle
    assert isinstance(handle, tuple) and len(handle) == 5 and handle[2:] == (most, hidden, experts)
    assert src_info.dtype == torch.int32 and layout_range.shape == (world.local, world.size)
    copied = pickle.loads(pickle.dumps(handle))
    assert type(copied) is tuple and torch.equal(copied[1], layout_range) and copied[2:] == handle[2:]
    wanted, _, _ = world.combine(recv_x, handle)
    assert float(wanted.abs().sum()) > 0 or not len(wanted)
    x = recv_x.clone()
    del recv_x, handle, src_info, layout_range  # what was dispatched is gone, but for the copies
    for _ in range(3):  # more than there are slots
        other = LowLatencyWorld(world.buffer, seed=3)
        other.dispatch(use_fp8=False)
        for how in ({}, {"async_finish": True}, {"return_recv_hook": True}):
            found, event, hook = world.combine(x, copied, **how)
            finish(event, hook, {"async_finish": "event", "return_recv_hook": "hook"}.get(next(iter(how), ""), ""))
            assert torch.equal(found, wanted)


def test_wrong_low_latency_tuples(buffer_of):
    world = LowLatencyWorld(buffer_of(low_latency_mode=True))
    recv_x, _, handle, _, _ = world.dispatch(use_fp8=False)
    plain = tuple(handle)
    for wrong, error, text in (
        (plain[:4], ValueError, "handle: expected the 5 items that low_latency_dispatch returned, got 4"),
        ((plain[0], None, *plain[2:]), TypeError, "handle: layout_range: expected a CPU tensor int64"),
        ((*plain[:3], -1, plain[4]), ValueError, "handle: hidden: expected"),
        ([*plain], TypeError, "handle: expected what low_latency_dispatch returned, got list"),
    ):
        with pytest.raises(error, match=text):
            world.combine(recv_x, wrong)
    with pytest.raises(ValueError, match="zero_copy: expected False with a handle that is a plain tuple"):
        world.combine(recv_x, plain, zero_copy=True)
    with pytest.raises(TypeError, match="handle: expected what low_latency_dispatch returned, got tuple"):
        world.buffer.get_next_low_latency_combine_buffer(plain)
    other = torch.full_like(world.idx, -1) if world.rank == 0 else world.idx
    with pytest.raises(ValueError, match=r"topk_idx: expected what was dispatched with this handle: rank \d had other"):
        world.buffer.low_latency_combine(recv_x, other, world.weights, plain)


# ---- nodes ----


def test_layout_tells_nodes(world):
    """Of each node how many tokens go there, where there are several."""
    per_node = world.buffer.get_dispatch_layout(world.topk_idx[world.rank], world.experts)[1]
    width, owners = node_ranks(world.size), world.owners(world.rank)
    if node_count(world.size) == 1:
        assert per_node is None
        return
    wanted = [((owners // width == node) & (owners >= 0)).any(1).sum() for node in range(node_count(world.size))]
    assert per_node.dtype == torch.int32 and per_node.tolist() == [int(count) for count in wanted]


def test_internode_calls(world):
    """The same as dispatch and combine, by DeepEP's other names."""
    (recv_x, _, row_weights, _, handle, _), x = dispatch(world, "internode_dispatch")
    combined, back, _ = world.buffer.internode_combine(
        recv_x, handle, topk_weights=row_weights, config=deep_ep.Config()
    )
    assert torch.equal(combined, summed(world, x)) and back.shape == (TOKENS, TOPK)
    deep_ep.utils.check_nvlink_connections(world.buffer.group)


def test_runtime(world):
    runtime, width = world.buffer.runtime, node_ranks(world.size)
    assert runtime.get_num_rdma_ranks() == node_count(world.size) and runtime.get_rdma_rank() == world.rank // width
    assert runtime.get_root_rdma_rank(True) == world.rank % width and runtime.get_root_rdma_rank(False) == 0
    assert runtime.is_available() and runtime.is_internode_available() == (node_count(world.size) > 1)
    assert runtime.get_local_device_id() == 0
    assert type(runtime.get_comm_stream()) is type(world.buffer.get_comm_stream())
    for name in ("nvlink_barrier", "get_local_ipc_handle", "get_local_nvshmem_unique_id", "sync"):
        with pytest.raises(AttributeError, match=f"no attribute '{name}'"):
            getattr(runtime, name)
    assert copy.copy(runtime).get_num_rdma_ranks() == runtime.get_num_rdma_ranks()
    world.buffer.destroy()
    assert world.buffer.runtime is None and not runtime.is_available() and not runtime.is_internode_available()


def test_runtime_moves_tokens(world):
    """By tensors instead of handles, as DeepEP's own Python does it."""
    runtime, across, late = world.buffer.runtime, node_count(world.size) > 1, (None, False, False)
    idx, weights = world.topk_idx[world.rank], world.weights[world.rank]
    x = rows_of("random", world.rank, len(idx))
    *layout, event = runtime.get_dispatch_layout(idx, world.experts, *late)
    assert event is None
    want, _, _, _, handle, _ = world.buffer.dispatch(
        x, None, *layout[:2], layout[3], layout[2], topk_idx=idx, topk_weights=weights
    )
    per_rank, per_node, per_expert, in_rank = layout
    given = (per_rank, per_node, in_rank, per_expert) if across else (per_rank, in_rank, per_expert)
    call = runtime.internode_dispatch if across else runtime.intranode_dispatch
    nothing = (0, 0, None, None, None, None) if across else (0, None, None)
    recv_x, scales, recv_idx, recv_weights, counts, *tensors, event = call(
        x, None, idx, weights, *given, *nothing, 1, 0, deep_ep.Config(), *late
    )
    assert scales is None and event is None and torch.equal(recv_x, want) and len(counts) == world.experts // world.size
    kept = handle[1:] if across else (*handle[:4], handle[5])
    assert all(torch.equal(one, other) for one, other in zip(tensors, kept, strict=True))
    if across:
        known = (len(recv_x), 0, tensors[0], tensors[3], tensors[1], tensors[5])
        back = (tensors[6], in_rank, tensors[2], tensors[3], tensors[4], tensors[7], tensors[8])
    else:
        known, back = (len(recv_x), tensors[0], tensors[1]), (tensors[3], tensors[0], tensors[2], tensors[4])
    again, *rest = call(x + 1, None, None, None, None, *given[1:], *known, 1, 0, deep_ep.Config(), *late)
    assert torch.equal(again, recv_x + 1) and rest[1:4] == [None] * 3 and rest[-1] is None
    call = runtime.internode_combine if across else runtime.intranode_combine
    combined, summed_weights, event = call(recv_x, recv_weights, x, None, *back, deep_ep.Config(), *late)
    want, want_weights, _ = world.buffer.combine(recv_x, handle, recv_weights, bias=x)
    assert event is None and torch.equal(combined, want) and torch.equal(summed_weights, want_weights)


# ---- errors and events ----


def test_errors_are_those_that_programs_catch(world):
    """Ours, DeepEP's assert and the RuntimeError of its compiled part."""
    (recv_x, _, _, _, handle, _), x = dispatch(world)
    lasting = deep_ep.Buffer(communicator(), timeout=30)
    for wrong, ours in (
        (lambda: world.buffer.combine(recv_x[1:].double(), handle), TypeError),
        (lambda: world.buffer.combine(torch.cat([recv_x, x[:1]]), handle), ValueError),
        (lambda: world.buffer.get_dispatch_layout(torch.zeros((1, 1)), world.experts), TypeError),
        (lambda: deep_ep.Buffer.set_num_sms(3), ValueError),
        (lambda: deep_ep.Config(20, 0), ValueError),
        (lambda: world.buffer.low_latency_dispatch(x, handle[4], 8, world.experts), RuntimeError),
        (lasting.destroy, RuntimeError),
    ):
        for kind in (ours, AssertionError, RuntimeError):
            with pytest.raises(kind):
                wrong()
    with pytest.raises(AssertionError):
        deep_ep.EventOverlap().current_stream_wait()


def test_previous_events(world):
    """Those that are reached, or none; what is no event is refused."""
    (recv_x, _, _, _, handle, _), x = dispatch(world)
    for event in (deep_ep.EventOverlap(), deep_ep.EventHandle(), deep_ep.EventOverlap(deep_ep.EventHandle())):
        assert torch.equal(world.buffer.combine(recv_x, handle, previous_event=event)[0], summed(world, x))
    for wrong in (3, object(), deep_ep.EventOverlap(3)):
        with pytest.raises(TypeError, match="previous_event: expected an EventHandle or EventOverlap, got "):
            world.buffer.combine(recv_x, handle, previous_event=wrong)


def test_events():
    """Hooks, blocks, and letting go."""
    seen = []
    event = deep_ep.EventOverlap(deep_ep.EventHandle())
    event.register_hook_after_wait(lambda: seen.append(1) or "done")
    with pytest.raises(AssertionError, match="there is a hook already"):
        event.register_hook_after_wait(print)
    assert event.wait() == "done" and event.wait() is None and seen == [1], "a hook is called once"
    with event:
        assert event.event is not None
    assert event.event is not None, "a block alone lets nothing go"
    with event(release_handle=True) as same:
        assert same is event and event.event is not None
    assert event.event is None
    with event:
        pass
    other = deep_ep.EventOverlap(deep_ep.EventHandle())
    assert other.current_stream_wait(release_handle=True) is None and other.event is None
    with pytest.raises(AssertionError, match="there is no event"):
        other.current_stream_wait()


def test_low_latency_events_keep_tensors(buffer_of):
    world = LowLatencyWorld(buffer_of(low_latency_mode=True))
    (recv_x, scales), counts, handle, event, hook = world.dispatch(async_finish=True)
    assert hook is None and all(
        any(one is kept for kept in event.extra_tensors) for one in (world.x, world.idx, recv_x, scales, counts)
    )
    event.current_stream_wait()
    rows = torch.zeros(recv_x.shape, dtype=torch.bfloat16)
    combined, event, _ = world.combine(rows, handle, async_finish=True)
    assert any(one is combined for one in event.extra_tensors) and any(one is rows for one in event.extra_tensors)
    event.current_stream_wait()
    _, _, _, event, hook = world.dispatch(return_recv_hook=True)
    assert event.extra_tensors is None
    hook()
