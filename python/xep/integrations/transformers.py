# SPDX-License-Identifier: BSD-3-Clause
"""Expert parallelism of transformers over xep, for models on CPU: importing this registers "xep".

    import xep.integrations.transformers
    from transformers import AutoModelForCausalLM
    from transformers.distributed import DistributedConfig

    model = AutoModelForCausalLM.from_pretrained(
        name, distributed_config=DistributedConfig(fsdp_size=4, ep_size=4, ep_implementation="xep"))

Every model with an expert-parallel plan works, in training and inference, in float64, float32, float16 and bfloat16. A
token goes once to each rank that has one of its experts; that rank weighs and sums what its experts make of it, and one
row comes back. What fails on one rank is an error on every rank of its group (RankError).
"""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch.distributed.tensor import DTensor, Replicate, Shard

from .versions import require

require("transformers", transformers.__version__, ("5.23", "5.24"))

from transformers.distributed.expert_parallel import EPImplementation, EPImplementationInterface  # noqa: E402

from .exchange import Counts, RankError, exchange_of, exchanges  # noqa: E402

__all__ = ["RankError", "XepEP", "close", "counts"]


class XepEP(EPImplementation):
    """One layer's experts. The layers of a model, and all models on the same ranks, share their memory."""

    def __init__(self, experts: torch.nn.Module, ep_mesh: Any, tp_mesh: Any) -> None:
        super().__init__(experts, ep_mesh, tp_mesh)
        if ep_mesh.device_type != "cpu":
            raise ValueError(f"ep_implementation='xep': expected a mesh of CPU ranks, got one of {ep_mesh.device_type}")
        self._module = experts
        self._experts = self.num_local_experts * ep_mesh.size()
        self._exchange = exchange_of(ep_mesh.get_group())

    @torch.compiler.disable
    def __call__(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        shared = self.tp_mesh.size() > 1  # with the other ranks of tensor parallelism: each sends a part of the tokens
        x, topk_idx, weights = hidden_states, top_k_index, top_k_weights
        if shared:
            x, topk_idx, weights = (self._part(whole) for whole in (x, topk_idx, weights))
        trained = any(parameter.requires_grad for parameter in self._module.parameters())
        rows, local, row_weights, way = self._exchange.dispatch(x, topk_idx, weights, self._experts, trained)
        with self._exchange.alarm.telling():
            y = self._run(rows, local, row_weights)
        out = self._exchange.combine(y, way)
        return self._whole(out, hidden_states) if shared else out

    def _run(self, rows: torch.Tensor, local: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """This rank's experts: a row of theirs for each selection that is one of them, weighed; and the sum of each
        received row's, in float32 at least.

        Without rows they run on one of zeros all the same, where there are gradients: so that each parameter has one,
        which those who hold copies of these experts wait for.
        """
        row, k = (local >= 0).nonzero(as_tuple=True)
        if len(row) > 0:
            chosen, weighed = local[row, k], weights[row, k]
            y = self.experts_forward(rows.index_select(0, row), chosen.unsqueeze(1), weighed.unsqueeze(1))
            sums = torch.zeros(rows.shape, dtype=torch.promote_types(y.dtype, torch.float32))
            return sums.index_add(0, row, y.to(sums.dtype)).to(y.dtype)
        if not torch.is_grad_enabled():
            return rows
        nothing = rows.new_zeros((1, rows.shape[1]))
        return self.experts_forward(nothing, local.new_zeros((1, 1)), weights.new_zeros((1, 1)))[:0]

    def _part(self, whole: torch.Tensor) -> torch.Tensor:
        """What this rank sends of tokens that all ranks of tensor parallelism have."""
        held = DTensor.from_local(whole, self.tp_mesh, [Replicate()], run_check=False)
        return held.redistribute(self.tp_mesh, [Shard(0)]).to_local()

    def _whole(self, part: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        shape = torch.Size((like.shape[0], part.shape[1]))
        held = DTensor.from_local(part, self.tp_mesh, [Shard(0)], run_check=False, shape=shape, stride=(shape[1], 1))
        return held.full_tensor()


def counts() -> Counts:
    """What this rank has done for all models so far."""
    total = Counts()
    for exchange in exchanges():
        for name, value in vars(exchange.counts).items():
            setattr(total, name, getattr(total, name) + value)
    return total


def close() -> None:
    """Frees what all models share with other ranks; a model that runs again makes it anew. Collective."""
    for exchange in exchanges():
        exchange.close()


EPImplementationInterface.register("xep", XepEP)
