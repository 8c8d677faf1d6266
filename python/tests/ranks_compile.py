# SPDX-License-Identifier: BSD-3-Clause
"""torch.compile around each call of deep_ep, and around a layer, on all ranks and on one: it gives what there is
without, bit for bit, and what is around the calls is compiled."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import deep_ep  # noqa: E402

TOKENS, TOPK, HIDDEN = 6, 2, 128


class Programs:
    """Each takes x and gives a tensor; calls are in the middle of what can be compiled."""

    def __init__(self, buffer: deep_ep.Buffer, elastic: deep_ep.ElasticBuffer) -> None:
        self.buffer, self.elastic, self.experts = buffer, elastic, 2 * buffer.group_size
        self.idx = torch.arange(TOKENS * TOPK).reshape(TOKENS, TOPK) % self.experts
        self.weights = torch.full((TOKENS, TOPK), 0.5)

    def layout(self, x):
        per_rank, _, per_expert, in_rank, event = self.buffer.get_dispatch_layout(self.idx, self.experts)
        return per_rank, per_expert, in_rank

    def sent(self, x, **options):
        per_rank, per_expert, in_rank = self.layout(x)
        return self.buffer.dispatch(
            x * 2, num_tokens_per_rank=per_rank, is_token_in_rank=in_rank, num_tokens_per_expert=per_expert,
            topk_idx=self.idx, topk_weights=self.weights, **options,
        )  # fmt: skip

    def dispatch(self, x):
        return self.sent(x)[0] + 1

    def normal(self, x):
        rows, _, weights, counts, handle, _ = self.sent(x)
        again = self.buffer.dispatch(x + 1, handle=handle)[0]
        out, _, _ = self.buffer.combine(rows * 2 + again + len(handle), handle, weights)
        return out + 1

    def events(self, x):
        rows, _, _, _, handle, event = self.sent(x, async_finish=True)
        event.current_stream_wait()
        out, _, event = self.buffer.combine(rows * 2, handle, async_finish=True)
        with event:
            y = x + 1
        return out + y

    def low_latency(self, x):
        rows, counts, handle, event, _ = self.buffer.low_latency_dispatch(
            x, self.idx, TOKENS, self.experts, use_fp8=False, async_finish=True
        )
        event.current_stream_wait()
        y = self.buffer.get_next_low_latency_combine_buffer(handle)
        y.copy_(rows * 3)
        out, _, _ = self.buffer.low_latency_combine(y, self.idx, self.weights, handle, zero_copy=True)
        return out + 1

    def hooks(self, x):
        (rows, scales), counts, handle, _, hook = self.buffer.low_latency_dispatch(
            x, self.idx, TOKENS, self.experts, return_recv_hook=True
        )
        hook()
        y = rows.to(torch.bfloat16) * 0 + 1
        out, _, hook = self.buffer.low_latency_combine(y, self.idx, self.weights, handle, return_recv_hook=True)
        hook()
        return out + 1

    def elastic_rows(self, x):
        rows, _, _, handle, _ = self.elastic.dispatch(x * 2, self.idx, self.weights, num_experts=self.experts)
        again = self.elastic.dispatch(x + 1, handle=handle)[0]
        out, _, _ = self.elastic.combine(rows * 2 + again + handle.num_experts, handle)
        return out + 1

    def elastic_expanded(self, x):
        rows, _, weights, handle, event = self.elastic.dispatch(
            x, self.idx, self.weights, num_experts=self.experts, do_expand=True, async_with_compute_stream=True
        )
        event.current_stream_wait()
        out, back, event = self.elastic.combine(rows * 2, handle, weights, async_with_compute_stream=True)
        event.current_stream_wait()
        return out + back.sum()


class Layer(torch.nn.Module):
    """Keeps its handle, as a layer that checkpoints does."""

    def __init__(self, programs: Programs) -> None:
        super().__init__()
        self.programs, self.scale = programs, torch.nn.Parameter(torch.ones(HIDDEN))
        self.handle = None

    def forward(self, x):
        y = (x * self.scale).detach().bfloat16()
        rows, _, _, _, self.handle, _ = self.programs.sent(y)
        out, _, _ = self.programs.buffer.combine(rows * 2, self.handle)
        return torch.relu(out) + x


def compiled(program):
    """With what is compiled of it counted."""
    graphs = []

    def count(graph, _inputs):
        graphs.append(graph)
        return graph.forward

    return torch.compile(program, backend=count), graphs


@pytest.fixture(scope="module")
def programs():
    from conftest import communicator

    buffer = deep_ep.Buffer(communicator(), low_latency_mode=True, explicitly_destroy=True)
    elastic = deep_ep.ElasticBuffer(communicator(), num_max_tokens_per_rank=TOKENS, explicitly_destroy=True)
    yield Programs(buffer, elastic)
    torch._dynamo.reset()
    elastic.destroy()
    buffer.destroy()


@pytest.mark.parametrize("everywhere", [True, False])
@pytest.mark.parametrize(
    "name",
    ["layout", "dispatch", "normal", "events", "low_latency", "hooks", "elastic_rows", "elastic_expanded", "layer"],
)
def test_compiled(programs, name, everywhere):
    program = Layer(programs) if name == "layer" else getattr(programs, name)
    x = torch.arange(TOKENS * HIDDEN).reshape(TOKENS, HIDDEN).remainder(5).bfloat16()
    compiles = everywhere or programs.buffer.rank == 0
    ours, graphs = compiled(program) if compiles else (program, [])
    for step in range(3):
        given = x + step
        got, want = ours(given), program(given)
        for one, other in zip(got, want) if isinstance(got, tuple) else [(got, want)]:
            assert torch.equal(one, other)
    assert bool(graphs) == (compiles and name != "layout")
