# SPDX-License-Identifier: BSD-3-Clause
"""Dispatch and combine with all their options, drawn by lot: each form of a call comes several times, with other values
in other arrays of every kind."""

from __future__ import annotations

import gc

import numpy as np
import oracle
import pytest
from conftest import as_kind

EXPERTS, TOPK, HIDDEN, TOKENS, SCALES = 6, 3, 16, 9, 4


@pytest.fixture
def buffer(group):
    with group.buffer(
        EXPERTS, TOPK, HIDDEN, TOKENS, dtype="float32", combine_dtype="float32", scales=SCALES + 6, slots=3
    ) as made:
        yield made


def strided(rng, array: np.ndarray) -> np.ndarray:
    """The same rows: dense, or in a wider array."""
    if rng.random() < 0.5:
        return array.copy()
    wide = np.full((array.shape[0], array.shape[1] + 8), 77, array.dtype)
    wide[:, : array.shape[1]] = array
    return wide[:, : array.shape[1]]


def tokens_of(step: int, rank: int) -> int:
    return [0, 1, 1, 2, 5, TOKENS][np.random.default_rng([step, rank, 7]).integers(6)]


def scales_of(step: int, rank: int, tokens: int) -> np.ndarray:
    return (np.arange(tokens * SCALES, dtype=np.float32) + 1000 * rank + step).reshape(tokens, SCALES)


def payloads_of(step: int, rank: int, tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """Two numbers and seven bytes for each token."""
    numbers = np.arange(tokens * 2, dtype=np.int64).reshape(tokens, 2) + 1000 * rank + step
    return numbers, (np.arange(tokens * 7) + rank * 31 + step).astype(np.uint8).reshape(tokens, 7)


class Form:
    """What one form of a call has in common: for all ranks, and for this one."""

    def __init__(self, number: int, rank: int) -> None:
        rng = np.random.default_rng([number, 1])
        self.topk = int(rng.choice([1, TOPK]))
        self.index = rng.choice([np.int64, np.int32])
        self.weighted, self.scaled, self.answered, self.loaded = rng.random(4) < [0.7, 0.4, 0.5, 0.4]
        self.rng = np.random.default_rng([number, 2, rank])
        self.by_column, self.zero_copy, self.given, self.given_weights = self.rng.random(4) < 0.5
        self.biases = int(self.rng.integers(3))
        self.alignment = int(self.rng.choice([1, 4]))
        self.capacity = int(self.rng.choice([0, 500]))


def send(buffer, form, kind, step, sent):
    mine = sent[buffer.group.rank]
    options = {}
    if form.scaled:
        scales = scales_of(step, buffer.group.rank, len(mine.x))
        options["scales"] = as_kind(kind, np.asfortranarray(scales) if form.by_column else scales)
    if form.loaded:
        payloads = payloads_of(step, buffer.group.rank, len(mine.x))
        options["payloads"] = tuple(as_kind(kind, strided(form.rng, array)) for array in payloads)
    if form.alignment != 1:
        options["expert_alignment"] = form.alignment
    if form.capacity:
        options["capacity"] = min(form.capacity, buffer.info().recv_rows)
    weights = strided(form.rng, mine.topk_weights) if form.weighted else None
    arrays = strided(form.rng, mine.x), strided(form.rng, mine.topk_idx.astype(form.index)), weights
    return buffer.dispatch(*[as_kind(kind, array) for array in arrays], **options)


def check_rows(buffer, handle, form, step, sent) -> None:
    want = oracle.received(sent, buffer.group.rank, EXPERTS)
    recv, rows = handle.recv, len(want.sources)
    assert recv.rows == rows and handle.tokens == len(sent[buffer.group.rank].x) and handle.topk == form.topk
    np.testing.assert_array_equal(recv.x[:rows], want.x)
    np.testing.assert_array_equal(recv.topk_idx[:rows], want.topk_idx)
    np.testing.assert_array_equal(recv.src_token[:rows], [token for _, token in want.sources])
    assert np.asarray(recv.topk_idx).dtype == form.index
    if form.weighted:
        np.testing.assert_array_equal(recv.topk_weights[:rows], want.topk_weights)
    else:
        assert recv.topk_weights is None
    if form.scaled:
        found = [scales_of(step, source, len(sent[source].x))[token] for source, token in want.sources]
        np.testing.assert_array_equal(recv.scales[:rows], np.array(found, np.float32).reshape(-1, SCALES))
    assert len(recv.payloads) == (2 if form.loaded else 0)
    for number, got in enumerate(recv.payloads):
        found = [payloads_of(step, source, len(sent[source].x))[number][token] for source, token in want.sources]
        assert np.asarray(got).dtype == (np.int64, np.uint8)[number]
        np.testing.assert_array_equal(got[:rows], np.array(found).reshape(-1, got.shape[1]))
    np.testing.assert_array_equal(recv.expert_rows, [-(-n // form.alignment) * form.alignment for n in want.experts])


def answer(buffer, handle, form, kind, sent):
    """Combine of twice what was received."""
    mine, recv = sent[buffer.group.rank], handle.recv
    options, x = {}, None
    if form.zero_copy:
        np.multiply(recv.x[: recv.rows], 2, out=np.asarray(handle.combine_input()))
    else:
        x = as_kind(kind, strided(form.rng, np.asarray(recv.x) * np.float32(2)))
    if form.weighted and form.answered:
        options["topk_weights"] = recv.topk_weights
        if form.given_weights:
            options["out_weights"] = as_kind(kind, np.full((handle.tokens, form.topk), -9, np.float32))
    if form.biases:
        bias = as_kind(kind, strided(form.rng, mine.x))
        options["bias"] = bias if form.biases == 1 else (bias, bias)
    if form.given:
        options["out"] = as_kind(kind, strided(form.rng, np.full_like(mine.x, -9)))
    result = handle.combine(x, **options)
    out, weights = result if "topk_weights" in options else (result, None)
    assert "out" not in options or out is options["out"]
    assert "out_weights" not in options or weights is options["out_weights"]
    copies = oracle.copies(mine, EXPERTS, buffer.group.nranks)[:, None]
    np.testing.assert_array_equal(out, mine.x * (2 * copies + form.biases))
    if weights is not None:
        np.testing.assert_array_equal(weights, np.where(mine.topk_idx >= 0, mine.topk_weights, 0))


def inputs_of(group, form, step):
    return [
        oracle.inputs(step, rank, tokens_of(step, rank), form.topk, EXPERTS, HIDDEN, masked=0.3)
        for rank in range(group.nranks)
    ]


def test_forms_again_and_again(group, buffer, kind):
    step = 0
    for number in np.random.default_rng(3).integers(24, size=60).tolist():
        form = Form(number, group.rank)
        for _ in range(3):
            sent = inputs_of(group, form, step)
            with send(buffer, form, kind, step, sent) as handle:
                check_rows(buffer, handle, form, step, sent)
                answer(buffer, handle, form, kind, sent)
            step += 1
    gc.collect()
    assert buffer.slots_held() == 0
