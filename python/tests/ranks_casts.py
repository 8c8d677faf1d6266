# SPDX-License-Identifier: BSD-3-Clause
"""Casts of a dispatch, against the types of torch and ml_dtypes: what a model would make of the rows itself."""

from __future__ import annotations

import numpy as np
import pytest

import xep

torch = pytest.importorskip("torch")

EXPERTS, TOPK, HIDDEN, TOKENS = 8, 2, 256, 37


@pytest.fixture(params=["ll", "normal"])
def buffer(group, request):
    scales = HIDDEN // 64 + 1 if request.param == "normal" else 0
    with group.buffer(EXPERTS, TOPK, HIDDEN, TOKENS, mode=request.param, scales=scales) as made:
        yield made


def rows_of(rank: int) -> torch.Tensor:
    made = torch.Generator().manual_seed(31 + rank)
    sizes = torch.exp2(torch.randint(-9, 9, (TOKENS, HIDDEN), generator=made).float())
    return (torch.randn(TOKENS, HIDDEN, generator=made) * sizes).to(torch.bfloat16)


def sources(recv, nranks: int) -> np.ndarray:
    """The rank that each row came from."""
    if recv.pair_count is None:
        return np.repeat(np.arange(nranks), np.diff(np.asarray(recv.src_begin).astype(np.int64)))
    begin = recv.pair_begin.tolist()
    source = np.empty(recv.rows, np.int64)
    for expert, counts in enumerate(recv.pair_count.tolist()):
        for rank, count in enumerate(counts):
            source[begin[expert][rank] : begin[expert][rank] + count] = rank
    return source


def exchange(buffer, quant: str, **options):
    """Rows as they were, as they came, and their scales."""
    group = buffer.group
    idx = torch.from_numpy(np.random.default_rng(group.rank).permuted(np.tile(np.arange(EXPERTS), (TOKENS, 1)), axis=1))
    handle = buffer.dispatch(rows_of(group.rank), idx[:, :TOPK].contiguous(), quant=quant, **options)
    recv = handle.recv
    source = sources(recv, group.nranks)
    sent = torch.stack([rows_of(rank) for rank in range(group.nranks)])
    tokens = torch.as_tensor(recv.src_token).long()[: recv.rows]
    x, scales = recv.x[: recv.rows], recv.scales
    return sent[torch.from_numpy(source), tokens].float(), x, None if scales is None else scales[: recv.rows], handle


def over(number: float, tensor: torch.Tensor) -> torch.Tensor:
    """number / tensor, rounded once: torch makes a product with the reciprocal of it."""
    return torch.full_like(tensor, number) / tensor


def bytes_of(scales: torch.Tensor, groups: int) -> torch.Tensor:
    return scales.contiguous().view(torch.uint8)[:, :groups]


def e2m1() -> type:
    """The type, of which torch converts nothing."""
    return pytest.importorskip("ml_dtypes").float4_e2m1fn


def pairs(x: torch.Tensor) -> torch.Tensor:
    bits = x.contiguous().view(torch.uint8)
    codes = torch.stack([bits & 15, bits >> 4], -1).flatten(-2)
    return torch.from_numpy(codes.numpy().view(e2m1()).astype(np.float32))


def nearest_e2m1(values: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(values.numpy().astype(e2m1()).astype(np.float32))


def least_power(amax: torch.Tensor, most: float) -> torch.Tensor:
    """The least power of two that is not below amax / most, in double."""
    return torch.exp2(torch.ceil(torch.log2(amax.double() / most)))


@pytest.mark.parametrize("quant, dtype", [("mxfp8", "float8_e4m3fn"), ("mxfp8_e5m2", "float8_e5m2")])
def test_mxfp8(buffer, quant, dtype):
    dtype = getattr(torch, dtype)
    sent, x, scales, handle = exchange(buffer, quant)
    blocks = sent.unflatten(1, (-1, 32))
    power = least_power(blocks.abs().amax(-1), torch.finfo(dtype).max)
    assert x.dtype == dtype
    assert torch.equal(bytes_of(scales, HIDDEN // 32).view(torch.float8_e8m0fnu).double(), power)
    expected = (blocks / power.float()[..., None]).to(dtype).flatten(1)
    assert torch.equal(x.view(torch.uint8), expected.view(torch.uint8))
    handle.release()


def test_mxfp4(buffer):
    sent, x, scales, handle = exchange(buffer, "mxfp4")
    blocks = sent.unflatten(1, (-1, 32))
    power = least_power(blocks.abs().amax(-1), 6)
    assert x.dtype == torch.float4_e2m1fn_x2 and x.shape[1] == HIDDEN // 2
    assert torch.equal(bytes_of(scales, HIDDEN // 32).view(torch.float8_e8m0fnu).double(), power)
    assert torch.equal(pairs(x), nearest_e2m1(blocks / power.float()[..., None]).flatten(1))
    handle.release()


@pytest.mark.parametrize("scale", [0.0, 0.004])
def test_nvfp4(buffer, scale):
    sent, x, scales, handle = exchange(buffer, "nvfp4", quant_scale=scale)
    blocks = sent.unflatten(1, (-1, 16))
    of_row = scales[:, -1].contiguous().view(torch.float32)
    amax = sent.abs().amax(-1)
    inverse = over(2688, amax) if scale == 0 else torch.full_like(amax, 1 / np.float32(scale))
    assert torch.equal(of_row, amax / 2688 if scale == 0 else torch.full_like(amax, scale))
    wanted = (blocks.abs().amax(-1) * np.float32(1 / 6) * inverse[:, None]).clamp(max=448).to(torch.float8_e4m3fn)
    got = bytes_of(scales, HIDDEN // 16).view(torch.float8_e4m3fn)
    assert torch.equal(got.view(torch.uint8), wanted.view(torch.uint8))
    factor = torch.where(got.float() == 0, 0, inverse[:, None].div(got.float()))
    assert torch.equal(pairs(x), nearest_e2m1((blocks * factor[..., None]).clamp(-6, 6)).flatten(1))
    handle.release()


@pytest.mark.parametrize("quant, channels", [("int8", 128), ("int8_row", HIDDEN)])
def test_int8(buffer, quant, channels):
    sent, x, scales, handle = exchange(buffer, quant)
    blocks = sent.unflatten(1, (-1, channels))
    amax = blocks.abs().amax(-1)
    assert x.dtype == torch.int8
    assert torch.equal(scales, amax / 127)
    assert torch.equal(x, (blocks * over(127, amax)[..., None]).round().to(torch.int8).flatten(1))
    handle.release()


def test_e4m3_static(buffer):
    sent, x, scales, handle = exchange(buffer, "e4m3_static", quant_scale=0.3)
    expected = (sent * over(1, torch.tensor(0.3))).clamp(-448, 448).to(torch.float8_e4m3fn)
    assert scales is None
    assert torch.equal(x.view(torch.uint8), expected.view(torch.uint8))
    handle.release()


def test_scales_that_make_no_sense_are_refused(buffer):
    for quant, scale in (("e4m3_static", 0.0), ("e4m3_static", float("nan")), ("mxfp8", 1.0), ("nvfp4", -1.0)):
        with pytest.raises(xep.XepError, match="quant_scale"):
            exchange(buffer, quant, quant_scale=scale)
    with pytest.raises(ValueError, match='"nvfp4"'):
        exchange(buffer, "fp3")
