# SPDX-License-Identifier: BSD-3-Clause
"""Scores of tokens for experts, with more tokens for one rank than for the others."""

from __future__ import annotations

import torch

_HALVINGS = 20


def get_unbalanced_scores(
    num_tokens: int, num_experts: int, num_ranks: int, num_topk: int, ratio: float, precise: bool
) -> torch.Tensor:
    """[T, E] float32 above 0, of whose num_topk largest rank 0 gets ratio times the tokens that another rank gets on
    average; a token that has several experts of a rank counts once. 1: all alike.

    precise: as near to that as whole tokens come; else scores are random, and rank 0's are multiplied by one factor.
    """
    if precise:
        return _precise_scores(num_tokens, num_experts, num_ranks, num_topk, ratio)
    scores = torch.randn((num_tokens, num_experts), dtype=torch.float32).abs() + 1
    if ratio == 1 or num_ranks == 1:
        return scores
    return _multiplied(scores, num_ranks, _factor(scores, num_ranks, num_topk, ratio))


def _multiplied(scores: torch.Tensor, num_ranks: int, factor: float) -> torch.Tensor:
    scaled = scores.clone()
    scaled[:, : scores.shape[1] // num_ranks] *= factor
    return scaled


def _factor(scores: torch.Tensor, num_ranks: int, num_topk: int, ratio: float) -> float:
    """By halving: the more rank 0's scores are multiplied by, the more tokens it gets."""
    least, most = 0.0, 64.0
    for _ in range(_HALVINGS):
        middle = (least + most) / 2
        counts = tokens_of_ranks(_multiplied(scores, num_ranks, middle), num_ranks, num_topk)
        if float(counts[0]) > float(counts[1:].double().mean()) * ratio:
            most = middle
        else:
            least = middle
    return least


def tokens_of_ranks(scores: torch.Tensor, num_ranks: int, num_topk: int) -> torch.Tensor:
    """[R]: tokens with an expert of each rank among their num_topk best."""
    ranks = scores.topk(num_topk, dim=1).indices // (scores.shape[1] // num_ranks)
    return torch.nn.functional.one_hot(ranks, num_ranks).amax(dim=1).sum(dim=0)


def _precise_scores(tokens: int, experts: int, ranks: int, topk: int, ratio: float) -> torch.Tensor:
    """Each token has none, one, or as many as there are of rank 0's experts, whichever brings the counts nearest to
    ratio; its other experts are of the ranks that have fewest tokens by then."""
    scores = torch.rand((tokens, experts), dtype=torch.float32)
    local = experts // ranks
    counts = [0] * ranks
    if ranks == 1:
        return scores + 0.5
    for token in range(tokens):
        choices = [mine for mine in {0, 1, min(local, topk)} if topk - mine <= experts - local]
        others = {mine: min(topk - mine, ranks - 1) for mine in choices}
        rest = sum(counts[1:])
        mine = min(choices, key=lambda n: abs((counts[0] + (n > 0)) * (ranks - 1) - ratio * (rest + others[n])))
        chosen = scores[token]
        chosen[torch.randperm(local)[:mine]] += 1
        left, order = topk - mine, sorted(range(1, ranks), key=lambda rank: (counts[rank], rank))
        for place, rank in enumerate(order):
            share = min(local, left // (ranks - 1) + (place < left % (ranks - 1)))
            chosen[rank * local + torch.randperm(local)[:share]] += 1
            counts[rank] += share > 0
        counts[0] += mine > 0
    return scores + 0.5
