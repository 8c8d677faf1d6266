# SPDX-License-Identifier: BSD-3-Clause
"""xep.nn: rows and gradients of a layer against one process that has every expert and every token."""

from __future__ import annotations

import conftest
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import xep  # noqa: E402

HIDDEN, OUT, LOCAL, TOPK, MOST = 10, 14, 2, 2, 12


@pytest.fixture
def exchange_of():
    made = []

    def make(capacity=None):
        made.append(xep.nn.Exchange(conftest.communicator(), capacity=capacity))
        return made[-1]

    yield make
    for exchange in made:
        exchange.close()


class Layer(torch.nn.Module):
    """Of every rank's experts; mine: those of a rank."""

    def __init__(self, ranks):
        super().__init__()
        torch.manual_seed(3)
        self.experts = torch.nn.ModuleList(torch.nn.Linear(HIDDEN, OUT) for _ in range(LOCAL * ranks))

    def mine(self, rank):
        return torch.nn.ModuleList(self.experts[rank * LOCAL : (rank + 1) * LOCAL])

    def alone(self, x, idx, weights):
        out = torch.zeros((len(x), OUT), dtype=x.dtype)
        for token, chosen in enumerate(idx.tolist()):
            for k, e in enumerate(chosen):
                if e >= 0:
                    out[token] = out[token] + weights[token, k] * self.experts[e](x[token])
        return out


def inputs(rank, ranks):
    """Ragged: some ranks have no tokens; a quarter of the selections is masked."""
    generator = torch.Generator().manual_seed(100 + rank)
    tokens = [7, 0, 12, 1][rank % 4]
    weights, idx = torch.rand((tokens, LOCAL * ranks), generator=generator).topk(TOPK, dim=1)
    idx[torch.rand(idx.shape, generator=generator) < 0.25] = -1
    x, grad = (torch.randn((tokens, n), generator=generator) for n in (HIDDEN, OUT))
    return x.requires_grad_(), idx, weights.masked_fill(idx < 0, 0.5).requires_grad_(), grad


def check(exchange, run):
    """run(layer, x, idx, weights), with gradients of x, weights and this rank's experts, that are summed over ranks."""
    rank, ranks = exchange.rank, exchange.ranks
    every, total = Layer(ranks), torch.zeros(())
    wanted = []
    for r in range(ranks):
        x, idx, weights, grad = inputs(r, ranks)
        out = every.alone(x, idx, weights)
        total = total + (out * grad).sum()
        wanted.append((out, x, weights))
    total.backward()
    out, x, weights = wanted[rank]
    mine = Layer(ranks).mine(rank)
    here, idx, row_weights, grad = inputs(rank, ranks)
    got = run(xep.nn.ExpertParallel(mine, exchange), here, idx, row_weights)
    got.backward(grad)
    pairs = [(got, out), (here.grad, x.grad), (row_weights.grad, weights.grad)]
    pairs += [(a.grad, b.grad) for a, b in zip(mine.parameters(), every.mine(rank).parameters())]
    for found, want in pairs:
        torch.testing.assert_close(found, torch.zeros_like(found) if want is None else want, rtol=1e-5, atol=1e-6)
    del got, pairs
    assert len(xep.nn._routes) == 0, "a route is as long there as its tensor"


@pytest.mark.parametrize("capacity", [None, 0])
def test_layer_with_gradients(exchange_of, capacity):
    exchange = exchange_of(capacity if capacity is None else MOST * conftest.communicator().size)
    for _ in range(3):
        check(exchange, lambda layer, *given: layer(*given))


def test_many_layers(exchange_of):
    """More handles than have memory: what is dispatched first is combined last."""
    exchange = exchange_of()
    x, idx, weights, grad = inputs(exchange.rank, exchange.ranks)
    layer = xep.nn.ExpertParallel(torch.nn.ModuleList(torch.nn.Identity() for _ in range(LOCAL)), exchange)
    y, wanted = x, x
    for _ in range(9):
        y = layer(y, idx, weights)
        wanted = wanted * torch.where(idx >= 0, weights, 0.0).sum(1, keepdim=True)
    torch.testing.assert_close(y, wanted, rtol=1e-4, atol=1e-5)
    found = torch.autograd.grad(y, (x, weights), grad[:, :HIDDEN])
    want = torch.autograd.grad(wanted, (x, weights), grad[:, :HIDDEN])
    torch.testing.assert_close(found, want, rtol=1e-3, atol=1e-5)


def test_the_backward_pass_is_everywhere(exchange_of):
    """Of experts that are trained, of inputs that are not: also on ranks that nobody has chosen."""
    exchange = exchange_of()
    x, idx, weights, grad = inputs(exchange.rank, exchange.ranks)
    idx = torch.where(idx >= 0, 0, idx)  # all of rank 0
    idx[:, 1:] = -1
    experts = Layer(exchange.ranks).mine(exchange.rank)
    out = xep.nn.ExpertParallel(experts, exchange)(x.detach(), idx, weights.detach())
    assert out.requires_grad
    out.backward(grad)
    assert all(one.grad is not None for one in experts.parameters())

    class OfAParameter(torch.nn.Module):
        """No gradient of it where there are no rows."""

        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.tensor(2.0))

        def forward(self, rows, idx, weights):
            return rows * self.scale if len(rows) else rows

    scaled = xep.nn.ExpertParallel(OfAParameter(), exchange, LOCAL * exchange.ranks)(x.detach(), idx, weights.detach())
    assert scaled.requires_grad, "also of a rank without rows: what its graph lacks, others would wait for"
    scaled.backward(grad[:, :HIDDEN])
    sent = exchange.dispatch(x.detach(), idx, weights.detach(), LOCAL * exchange.ranks)
    assert not sent.rows.requires_grad and not exchange.combine(sent.rows, sent).requires_grad
    with pytest.raises(ValueError, match=r"x: expected 2 dimensions, got 3 of shape \[1, "):
        exchange.dispatch(x.detach().unsqueeze(0), idx, weights.detach(), LOCAL * exchange.ranks)
    with pytest.raises(ValueError, match="tokens: expected .*, which were dispatched, got 99"):
        exchange.combine(sent.rows, sent, 99)
    with pytest.raises(RuntimeError, match="route: expected one that dispatch returned"):
        exchange.combine(sent.rows, torch.tensor([0.5], dtype=torch.float64))


def test_compiled_model_is_one_graph(exchange_of):
    if conftest.communicator().size > 2:
        pytest.skip("to compile takes seconds on each rank")
    import torch._dynamo.testing

    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    torch._dynamo.config.capture_dynamic_output_shape_ops = True  # nonzero() of the layer
    try:
        exchange = exchange_of(MOST * conftest.communicator().size)
        check(exchange, torch.compile(lambda layer, *given: layer(*given).clone(), backend=counter, fullgraph=True))
        assert counter.frame_count == 1
        names = [str(node.target) for graph in counter.graphs for node in graph.graph.nodes]
        assert sum("xep" in name for name in names) == 2, "dispatch and combine are in it"
    finally:
        torch._dynamo.config.capture_dynamic_output_shape_ops = False
        torch._dynamo.reset()


def test_warning(exchange_of):
    """Rows that require grad, in a call without gradients."""
    with (
        xep.Group(conftest.communicator()) as group,
        group.buffer(2 * group.nranks, 2, 8, 4, dtype="float32") as buffer,
    ):
        x, idx = torch.ones((2, 8), requires_grad=True), torch.zeros((2, 1), dtype=torch.int64)
        with pytest.warns(UserWarning, match="x requires grad, .* xep.nn has dispatch and combine with gradients"):
            buffer.dispatch(x, idx).release()
