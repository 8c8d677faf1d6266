# SPDX-License-Identifier: BSD-3-Clause
"""deep_ep's normal mode in CUDA graphs: num_worst_tokens, where no call waits for counts."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
if not torch.cuda.is_available():
    pytest.skip("torch has no CUDA device here", allow_module_level=True)
from conftest import communicator, meet  # noqa: E402
from cuda_memory import rank_device  # noqa: E402
from normal_world import TOKENS, layout_arguments, make_world, prepared, rows_of  # noqa: E402

from deep_ep.utils import calc_diff  # noqa: E402


@pytest.fixture
def world(buffer_of):
    rank_device(communicator().rank)
    made = make_world(buffer_of())
    if made.buffer.runtime.get_num_rdma_ranks() > 1:
        pytest.skip("rows are staged: the host takes part in every operation")
    return made


def capture(world, x, arguments, idx, worst) -> tuple:
    """A layout, a dispatch, one with its handle, and combines of both."""
    graph, weights = torch.cuda.CUDAGraph(), arguments["topk_weights"]
    with torch.cuda.graph(graph, capture_error_mode="relaxed"):
        layout = layout_arguments(world.buffer.get_dispatch_layout(idx, world.experts))
        recv_x, recv_idx, _, counts, handle, _ = world.buffer.dispatch(
            x, **layout, topk_idx=idx, topk_weights=weights, num_worst_tokens=worst
        )
        again, *_, event = world.buffer.dispatch(x + 1, handle=handle, async_finish=True)
        event.current_stream_wait()
        out, _, _ = world.buffer.combine(recv_x * 2, handle)
        out_again, _, event = world.buffer.combine(again, handle, async_finish=True)
        event.current_stream_wait()
    assert counts == []
    return graph, recv_x, recv_idx, again, handle, out, out_again


def test_a_graph(world):
    """Launched with other rows and other routings; calls between its launches leave its slots alone, and it theirs."""
    x, arguments = prepared(world)
    worst, idx = TOKENS * world.size, arguments["topk_idx"].clone()
    copies = world.in_rank(world.rank).sum(1, keepdim=True)
    world.buffer.dispatch(x, **arguments, num_worst_tokens=worst)  # makes memory
    torch.cuda.synchronize()
    meet()
    given = x.clone()
    graph, recv_x, recv_idx, again, handle, out, out_again = capture(world, given, arguments, idx, worst)
    other = make_world(world.buffer, seed=5)
    for step in range(6):
        at = (world, other)[step % 2]
        given.copy_(x + step)
        idx.copy_(at.topk_idx[at.rank])
        graph.replay()
        here, sent = len(at.sources()), at.in_rank(at.rank).sum(1, keepdim=True)
        wanted = torch.stack([rows_of("random", r, len(at.topk_idx[r]))[t] for r, t in at.sources()]) + step
        kept = [world.buffer.dispatch(x + layer, **arguments, num_worst_tokens=worst) for layer in range(5)]
        assert torch.equal(recv_x[:here].cpu(), wanted) and torch.equal(again[:here].cpu(), wanted + 1)
        assert bool((recv_idx[:here] >= 0).any(1).all()) and bool((recv_idx[here:] == -1).all())
        assert calc_diff(out.cpu(), (x.cpu() + step) * 2 * sent) < 1e-4
        assert calc_diff(out_again.cpu(), (x.cpu() + step + 1) * sent) < 1e-4
        graph.replay()
        assert calc_diff(world.buffer.combine(recv_x, handle)[0].cpu(), (x.cpu() + step) * sent) < 1e-4
        for layer, (rows, *_, eager, _) in enumerate(kept):
            assert calc_diff(world.buffer.combine(rows, eager)[0].cpu(), (x.cpu() + layer) * copies) < 1e-4
    torch.cuda.synchronize()
    meet()


def test_what_a_graph_cannot_have(world):
    """What waits for counts, or makes memory, is refused in the call, and the graph is none."""
    x, arguments = prepared(world)
    worst = TOKENS * world.size
    exact = world.buffer.dispatch(x, **arguments)[4]
    world.buffer.dispatch(x, **arguments, num_worst_tokens=worst)
    kept = [world.buffer.dispatch(x, **arguments, num_worst_tokens=worst) for _ in range(8)]
    torch.cuda.synchronize()
    meet()
    for text, call in (
        ("num_worst_tokens: expected more than 0", lambda: world.buffer.dispatch(x, **arguments)),
        (
            "x: expected what a dispatch before the CUDA graph",
            lambda: world.buffer.dispatch(x, **arguments, num_worst_tokens=100 * worst),
        ),
        ("handle: expected one of the last dispatches", lambda: world.buffer.dispatch(x, handle=exact)),
    ):
        with torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode="relaxed"):
            x + 1  # torch warns of graphs that have nothing
            with pytest.raises(ValueError, match=text):
                call()
    torch.cuda.synchronize()
    meet()
    recv_x = world.buffer.dispatch(x, **arguments, num_worst_tokens=worst)[0]
    assert torch.equal(recv_x[: len(world.sources())], kept[0][0][: len(world.sources())])
