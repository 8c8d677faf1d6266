# SPDX-License-Identifier: BSD-3-Clause
"""Dispatch and combine with gradients, for torch: each is the other's backward, and a layer of experts over ranks.

    import torch, xep.nn                                  # xep_run -n 4 python PROGRAM, or torchrun

    experts = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(2))       # of this rank
    layer = xep.nn.ExpertParallel(experts, xep.nn.Exchange(group))                 # a process group; None: PMIx
    out = layer(x, topk_idx, topk_weights)                # [T, 64]; out.sum().backward()

Every rank makes the same calls in the same order, whatever it has: no tokens, no rows, experts that nobody chose. That
holds for the backward pass because of the route, a tensor that goes from dispatch to combine beside the rows: where a
gradient is wanted at all, combine has an input that requires one on every rank, and so has a backward on every rank.

Both are operators of torch's (xep::dispatch and xep::combine), which know the shapes of what they return, so that
torch.compile keeps a model in one graph: with capacity, or, as how many rows come is known only when they are here,
with torch._dynamo.config.capture_dynamic_output_shape_ops.
"""

from __future__ import annotations

import itertools
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import torch
from torch import Tensor

from .paths import own_deep_ep

if TYPE_CHECKING:
    import deep_ep
else:
    deep_ep = own_deep_ep()

_SLOTS = 6  # for handles of the last layers; one without a slot costs its backward a dispatch that is not cached


class Sent(NamedTuple):
    """What a dispatch returns: rows [N, H], idx [N, K] local experts or -1, weights [N, K], and what combine needs."""

    rows: Tensor
    idx: Tensor
    weights: Tensor
    route: Tensor


class Exchange:
    """Ranks that trade rows. group: a process group of any backend, or None: PMIx. Collective to make.

    capacity: rows of the received tensors, of which those that have not come are 0, their idx -1; at least what can
    come, R * T. None: exactly the rows that come.
    num_slots: of deep_ep.Buffer: how many layers' handles have memory of their own, and two more.
    """

    _buffer: Optional[deep_ep.Buffer] = None

    def __init__(self, group: Any = None, *, capacity: Optional[int] = None, num_slots: int = _SLOTS) -> None:
        self.group, self.capacity, self._num_slots = group, capacity, num_slots
        self._number = next(_numbers)
        _exchanges[self._number] = self
        self._anchors = [torch.zeros((), requires_grad=wanted, device="cpu") for wanted in (False, True)]
        buffer = self._open()
        self.ranks, self.rank = buffer.group_size, buffer.rank

    def dispatch(self, x: Tensor, topk_idx: Tensor, weights: Tensor, experts: int, trained: bool = False) -> Sent:
        """x [T, H] (float32, bfloat16 or float16), topk_idx [T, K] (expert, or -1), weights [T, K] -> each token
        once at each rank that has one of its experts. Collective.

        trained: the experts have a gradient of their own to find, even where x and weights need none.
        """
        self._check(x=x, topk_idx=topk_idx, weights=weights)
        wanted = torch.is_grad_enabled() and (trained or x.requires_grad or weights.requires_grad)
        return Sent(
            *torch.ops.xep.dispatch(
                self._anchors[wanted], x, topk_idx, weights, experts, self._number, self.capacity or 0
            )
        )

    def combine(self, y: Tensor, sent: Sent | Tensor, tokens: Optional[int] = None) -> Tensor:
        """y [N, H'], a row for each row received -> the sums [T, H'] where the tokens came from. Collective.

        sent: what dispatch returned, or its route. tokens: T, which the fake kernel is to know.
        """
        self._check(y=y)
        route = sent.route if isinstance(sent, Sent) else sent
        return torch.ops.xep.combine(y, route, self._number, _tokens_of(route) if tokens is None else tokens)

    def close(self) -> None:
        """Frees the memory, which the next call makes anew. Collective."""
        if self._buffer is not None:
            self._buffer.explicitly_destroy = True
            self._buffer.destroy()
        self._buffer = None

    def _check(self, **tensors: Tensor) -> None:
        for name, tensor in tensors.items():
            if tensor.is_meta:
                raise TypeError(f"{name}: expected a CPU or CUDA tensor, got one on meta")
            if tensor.dim() != 2:
                raise ValueError(f"{name}: expected 2 dimensions, got {tensor.dim()} of shape {list(tensor.shape)}")

    # ---- operations, without gradients ----

    def send(self, x: Any, topk_idx: Tensor, weights: Tensor, experts: int, capacity: int) -> tuple[Any, ...]:
        """(rows, idx, weights, what the next two need). x: rows, or, without capacity, rows and their scales."""
        buffer, topk_idx = self._open(), topk_idx.contiguous()
        layout = buffer.get_dispatch_layout(topk_idx, experts)
        rows, idx, row_weights, _, handle, _ = buffer.dispatch(
            x if isinstance(x, tuple) else x.contiguous(),
            topk_idx=topk_idx,
            topk_weights=weights.to(torch.float32).contiguous(),
            num_tokens_per_rank=layout[0],
            num_tokens_per_rdma_rank=layout[1],
            num_tokens_per_expert=layout[2],
            is_token_in_rank=layout[3],
            num_worst_tokens=capacity,
        )
        assert idx is not None and row_weights is not None
        if capacity:  # what did not come
            assert isinstance(rows, Tensor)
            missing = (idx < 0).all(dim=1)
            rows, row_weights = rows.masked_fill(missing.unsqueeze(1), 0), row_weights.masked_fill(idx < 0, 0.0)
        return rows, idx, row_weights.to(weights.dtype), handle

    def send_again(self, x: Tensor, route: Any) -> Tensor:
        """Other rows [T, H'] along a route."""
        rows = self._open().dispatch(x.contiguous(), handle=route)[0]
        assert isinstance(rows, Tensor)
        return rows

    def sum_at_home(self, rows: Tensor, weights: Optional[Tensor], route: Any) -> tuple[Any, ...]:
        """(sums [T, H'], sums of weights [T, K] or None)"""
        carried = None if weights is None else weights.to(torch.float32).contiguous()
        out, sums, _ = self._open().combine(rows.contiguous(), route, topk_weights=carried)
        return out, None if sums is None or weights is None else sums.to(weights.dtype)

    def _open(self) -> deep_ep.Buffer:
        if self._buffer is None:
            self._buffer = deep_ep.Buffer(self.group, num_slots=self._num_slots)
        return self._buffer


class ExpertParallel(torch.nn.Module):
    """A layer of experts, of which every rank has as many: dispatch, this rank's experts, combine.

    experts: a ModuleList of this rank's, each [n, H] -> [n, H'], or one module of all: (rows [N, H], idx [N, K],
    weights [N, K]) -> [N, H'], the weighted sum for each row; idx -1 is another rank's, with weight 0. num_experts: of
    all ranks; None: so many as a list has, on each.
    """

    def __init__(self, experts: torch.nn.Module, exchange: Exchange, num_experts: Optional[int] = None) -> None:
        super().__init__()
        if num_experts is None and not isinstance(experts, torch.nn.ModuleList):
            raise TypeError("num_experts: expected a number, as experts is no ModuleList, got None")
        self.experts, self.exchange = experts, exchange
        each = len(experts) if isinstance(experts, torch.nn.ModuleList) else 0
        self.num_experts = each * exchange.ranks if num_experts is None else num_experts

    def forward(self, x: Tensor, topk_idx: Tensor, topk_weights: Tensor) -> Tensor:
        """x [T, H], topk_idx [T, K] (expert of all, or -1), topk_weights [T, K] -> [T, H']. Collective."""
        trained = any(parameter.requires_grad for parameter in self.experts.parameters())
        sent = self.exchange.dispatch(x, topk_idx, topk_weights, self.num_experts, trained)
        if isinstance(self.experts, torch.nn.ModuleList):
            y = _weighted_sum(self.experts, sent)
        else:
            y = self.experts(sent.rows, sent.idx, sent.weights)
        return self.exchange.combine(y, sent, x.shape[0])


def _weighted_sum(experts: torch.nn.ModuleList, sent: Sent) -> Tensor:
    """In float32 at least. Each expert runs, on no rows too, so that each parameter has a gradient."""
    total: Optional[Tensor] = None
    rows, like = sent.rows, torch.promote_types(sent.rows.dtype, torch.float32)
    for number, expert in enumerate(experts):
        row, k = (sent.idx == number).nonzero(as_tuple=True)
        y = expert(rows.index_select(0, row)).to(like) * sent.weights[row, k].to(like).unsqueeze(1)
        if total is None:
            total = torch.zeros((rows.shape[0], y.shape[1]), dtype=like, device=rows.device)
        total = total.index_add(0, row, y)
    if total is None:
        raise ValueError("experts: expected at least one expert of this rank, got an empty list")
    return total.to(rows.dtype)


# ---- the route ----


class _Memory(bytearray):
    """Of a route tensor, and as long as that: what it leads to."""

    route: Any
    tokens: int


_numbers = itertools.count(1)
_exchanges: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_routes: weakref.WeakValueDictionary[int, _Memory] = weakref.WeakValueDictionary()


def _route_to(what: Any, tokens: int) -> Tensor:
    """Of a type that has gradients, and holds numbers up to 2^53."""
    number, memory = next(_numbers), _Memory(8)
    memory.route, memory.tokens = what, tokens
    _routes[number] = memory
    route = torch.frombuffer(memory, dtype=torch.float64)
    return route.fill_(number)


def _memory_of(route: Tensor) -> _Memory:
    memory = _routes.get(int(route))
    if memory is None:
        raise RuntimeError("route: expected one that dispatch returned, got another tensor, or one that is gone")
    return memory


def _tokens_of(route: Tensor) -> int:
    return _memory_of(route).tokens


def _exchange(number: int) -> Exchange:
    found = _exchanges.get(number)
    if found is None:
        raise RuntimeError("the Exchange is gone")
    return found


# ---- operators; not by torch.library.custom_op, whose first call imports torch's compiler ----


def _dispatch(
    anchor: Tensor, x: Tensor, topk_idx: Tensor, weights: Tensor, experts: int, exchange: int, capacity: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows, idx, row_weights, route = _exchange(exchange).send(x, topk_idx, weights, experts, capacity)
    return rows, idx, row_weights, _route_to(route, x.shape[0])


def _dispatch_fake(
    anchor: Tensor, x: Tensor, topk_idx: Tensor, weights: Tensor, experts: int, exchange: int, capacity: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows = capacity or torch.library.get_ctx().new_dynamic_size()
    shape = rows, topk_idx.shape[1]
    route = torch.empty((1,), dtype=torch.float64, device="cpu")
    return x.new_empty((rows, x.shape[1])), topk_idx.new_empty(shape), weights.new_empty(shape), route


def _combine(y: Tensor, route: Tensor, exchange: int, tokens: int) -> Tensor:
    memory = _memory_of(route)
    if tokens != memory.tokens:
        raise ValueError(f"tokens: expected {memory.tokens}, which were dispatched, got {tokens}")
    return _exchange(exchange).sum_at_home(y, None, memory.route)[0]


def _combine_fake(y: Tensor, route: Tensor, exchange: int, tokens: int) -> Tensor:
    return y.new_empty((tokens, y.shape[1]))


def _dispatch_backward(
    rows: Tensor, weights: Tensor, route: Tensor, exchange: int, tokens: int
) -> tuple[Tensor, Tensor]:
    x, summed = _exchange(exchange).sum_at_home(rows, weights, _memory_of(route).route)
    return x, summed


def _dispatch_backward_fake(
    rows: Tensor, weights: Tensor, route: Tensor, exchange: int, tokens: int
) -> tuple[Tensor, Tensor]:
    return rows.new_empty((tokens, rows.shape[1])), weights.new_empty((tokens, weights.shape[1]))


def _combine_backward(grad: Tensor, route: Tensor, exchange: int, rows: int) -> Tensor:
    return _exchange(exchange).send_again(grad, _memory_of(route).route)


def _combine_backward_fake(grad: Tensor, route: Tensor, exchange: int, rows: int) -> Tensor:
    return grad.new_empty((rows, grad.shape[1]))


_library = torch.library.Library("xep", "DEF")


def _define(name: str, schema: str, call: Any, fake: Any) -> None:
    _library.define(name + schema)
    _library.impl(name, call, "CompositeExplicitAutograd")
    torch.library.register_fake(f"xep::{name}", fake, lib=_library)


_define(
    "dispatch",
    "(Tensor anchor, Tensor x, Tensor topk_idx, Tensor weights, int experts, int exchange, SymInt capacity)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
    _dispatch,
    _dispatch_fake,
)
_define("combine", "(Tensor y, Tensor route, int exchange, SymInt tokens) -> Tensor", _combine, _combine_fake)
_define(
    "dispatch_backward",
    "(Tensor rows, Tensor weights, Tensor route, int exchange, SymInt tokens) -> (Tensor, Tensor)",
    _dispatch_backward,
    _dispatch_backward_fake,
)
_define(
    "combine_backward",
    "(Tensor grad, Tensor route, int exchange, SymInt rows) -> Tensor",
    _combine_backward,
    _combine_backward_fake,
)


# ---- gradients ----


def _keep_dispatch(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    ctx.save_for_backward(output[1], output[3])
    ctx.exchange, ctx.tokens = inputs[5], inputs[1].shape[0]
    ctx.set_materialize_grads(True)


def _back_from_dispatch(ctx: Any, rows: Tensor, _idx: Any, weights: Tensor, _route: Any) -> tuple[Any, ...]:
    x = summed = None
    if ctx.needs_input_grad[1] or ctx.needs_input_grad[3]:
        idx, route = ctx.saved_tensors
        x, summed = torch.ops.xep.dispatch_backward(
            rows, weights.masked_fill(idx < 0, 0.0), route, ctx.exchange, ctx.tokens
        )
    return None, x, None, summed, None, None, None


def _keep_combine(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[1])
    ctx.exchange, ctx.rows = inputs[2], inputs[0].shape[0]


def _back_from_combine(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    (route,) = ctx.saved_tensors
    return torch.ops.xep.combine_backward(grad, route, ctx.exchange, ctx.rows), torch.zeros_like(route), None, None


for _name, _back, _keep in (
    ("dispatch", _back_from_dispatch, _keep_dispatch),
    ("combine", _back_from_combine, _keep_combine),
):
    torch.library.register_autograd(f"xep::{_name}", _back, setup_context=_keep, lib=_library)

__all__ = ["Exchange", "ExpertParallel", "Sent"]
