# SPDX-License-Identifier: BSD-3-Clause
"""deep_ep in one process: configurations and hints, events, utilities, the calls that need no other rank."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import warnings
import weakref

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import deep_ep  # noqa: E402
import deep_ep.utils as utils  # noqa: E402
import xep  # noqa: E402
from deep_ep.handles import spread_there  # noqa: E402
from deep_ep.utils.comm import Nodes  # noqa: E402


@pytest.fixture
def buffer():
    made = deep_ep.Buffer(num_nvl_bytes=1280, num_rdma_bytes=256, explicitly_destroy=True)
    yield made
    if made.is_available():
        made.destroy()


def test_names():
    import deep_ep_cpp

    assert deep_ep_cpp.Config is deep_ep.Config and deep_ep_cpp.EventHandle is deep_ep.EventHandle
    assert deep_ep_cpp.get_low_latency_rdma_size_hint(128, 3072, 8, 288) == 920127872
    assert deep_ep_cpp.is_sm90_compiled() and deep_ep.Buffer.is_sm90_compiled(), "programs ask whether FP8 works"
    assert deep_ep.topk_idx_t == torch.int64
    assert utils.EventOverlap is deep_ep.EventOverlap and utils.EventHandle is deep_ep.EventHandle
    assert deep_ep.utils.event.EventOverlap is deep_ep.EventOverlap and deep_ep.utils.envs.init_dist is utils.init_dist
    assert deep_ep.utils.math.calc_diff is utils.calc_diff and deep_ep.utils.testing.bench is utils.bench
    assert deep_ep.__version__ == f"2.1.0+xep{xep.version()}", "of DeepEP's interface, and of xep"


# num_sms 20, hidden 7168 bfloat16, default configurations; and the numbers of DeepEP's low-latency hint
@pytest.mark.parametrize(
    "ranks, nvl, rdma", [(8, 335.7, 0), (16, 377.7, 91.9), (32, 377.7, 168.0), (64, 377.7, 336.0), (160, 944.2, 866.4)]
)
def test_size_hints(ranks, nvl, rdma):
    config = deep_ep.Buffer.get_dispatch_config(ranks)
    found = config.get_nvl_buffer_size_hint(14336, ranks), config.get_rdma_buffer_size_hint(14336, ranks)
    assert [round(size / 1e6, 1) for size in found] == [nvl, rdma] and all(size % 128 == 0 for size in found)


def test_size_hints_of_small_nodes():
    """XEP_NODE_RANKS: as of a group whose nodes have so many ranks."""
    program = (
        "import deep_ep; c = deep_ep.Config(20, 6, 256, 6, 128); "
        "print([c.get_rdma_buffer_size_hint(64, n) for n in (4, 8)], c.get_nvl_buffer_size_hint(64, 4))"
    )
    environ = dict(os.environ, XEP_NODE_RANKS="2", PYTHONPATH=":".join(sys.path))
    python = os.environ.get("XEP_TEST_FORKS", sys.executable)
    found = subprocess.run([python, "-c", program], env=environ, capture_output=True, text=True, check=True)
    token = 64 + 8 + 128 * (8 + 4 + 4)
    rdma = [10 * nodes * 6 * 2 * 4 + 10 * nodes * 132 * 2 * (token + 16) for nodes in (2, 4)]
    nvl = 10 * 2 * (2 * 2 + 3) * 4 + 10 * 2 * 256 * token
    assert found.stdout.split("] ") == [str([-(-size // 128) * 128 for size in rdma])[:-1], f"{-(-nvl // 128) * 128}\n"]


def test_elastic_size_hint():
    """The number that is known of DeepEP's hint for two nodes of 8; the rest by its formula."""

    class Group:
        def __init__(self, ranks: int) -> None:
            self.size = lambda: ranks

    hint = deep_ep.ElasticBuffer.get_buffer_size_hint
    assert hint(Group(16), 4096, 7168, 8) == 1218445312
    there = 8 * 4096 * (14336 + 128)  # a row, 8 indices of 8 bytes, 9 words
    assert hint(Group(8), 4096, 7168, 8) == -(-there // 2**21) * 2**21
    assert hint(Group(8), 4096, 7168, 8, use_fp8_dispatch=True) < hint(Group(8), 4096, 7168, 8)
    assert hint(Group(4), 0, 0) == 0 and hint(Group(4), 1, 64) == 2**21


def test_nodes():
    """Of different sizes, and not in blocks."""

    class Group:
        nranks, nnodes, node, rank = 5, 2, 0, 0

        def allgather(self, data):
            return [struct.pack("<I", node) for node in (0, 1, 0, 0, 1)]

    nodes = Nodes(Group())
    assert nodes.members == [[0, 2, 3], [1, 4]] and nodes.place_of == [0, 0, 1, 2, 1]
    assert (nodes.width, nodes.per_block) == (3, 0)
    in_rank = torch.tensor([[False, True, False, False, False], [True, False, False, True, False]])
    assert nodes.reached(in_rank).tolist() == [[False, True], [True, False]]
    Group.allgather = lambda self, data: [struct.pack("<I", node) for node in (0, 0, 0, 1, 1)]
    assert Nodes(Group()).per_block == 3


@pytest.mark.parametrize(
    "shape, size",
    [
        ((128, 3072, 8, 288), 920127872),
        ((128, 7168, 8, 288), 2146961792),
        ((256, 7168, 8, 256), 3816818816),
        ((16, 5120, 8, 256), 170395776),
    ],
)
def test_low_latency_size_hint(shape, size):
    assert deep_ep.Buffer.get_low_latency_rdma_size_hint(*shape) == size


def test_configs():
    config = deep_ep.Config(24, 8, 256, 6, 127)
    assert config.num_max_rdma_chunked_recv_tokens == 132, "a multiple of what is sent at once"
    assert (config.num_sms, config.num_max_nvl_chunked_send_tokens, config.num_max_nvl_chunked_recv_tokens) == (
        24,
        8,
        256,
    )
    for ranks in range(1, 200):
        for found in (deep_ep.Buffer.get_dispatch_config(ranks), deep_ep.Buffer.get_combine_config(ranks)):
            assert found.num_sms == deep_ep.Buffer.num_sms
    for wrong in ((-1,), (20, 0), (20, 256, 256), (20, 6, 256, 0), (20, 6, 256, 128, 100), (20, 6, 256, 6, 0)):
        with pytest.raises(ValueError, match="expected"):
            deep_ep.Config(*wrong)
    with pytest.raises(TypeError, match="num_max_nvl_chunked_send_tokens: expected an integer, got 6.5"):
        deep_ep.Config(20, 6.5)
    with pytest.raises(TypeError, match="new_num_sms: expected an integer, got '20'"):
        deep_ep.Buffer.set_num_sms("20")


def test_sizes_are_checked():
    for options in (dict(num_nvl_bytes=100), dict(num_rdma_bytes=-128), dict(num_nvl_bytes=1.5)):
        with pytest.raises(ValueError, match=f"{next(iter(options))}: expected a multiple of 128 bytes"):
            deep_ep.Buffer(**options)
    with pytest.raises(ValueError, match="num_slots: expected 1 or more, got 0"):
        deep_ep.Buffer(num_slots=0)
    with pytest.raises(ValueError, match="enable_shrink: expected False without low_latency_mode"):
        deep_ep.Buffer(enable_shrink=True)


def test_runtime(buffer):
    assert (buffer.rank, buffer.group_size) == (0, 1)
    runtime = buffer.runtime
    assert (runtime.get_num_rdma_ranks(), runtime.get_rdma_rank(), runtime.get_root_rdma_rank(True)) == (1, 0, 0)
    assert runtime.is_available() and runtime.get_local_device_id() == 0


def test_local_buffer_tensor(buffer):
    whole = buffer.get_local_buffer_tensor(torch.bfloat16)
    assert whole.numel() == 640 and whole.dtype == torch.bfloat16
    whole[64] = 3
    part = buffer.get_local_buffer_tensor(torch.bfloat16, torch.Size((2, 8)), offset=128)
    assert part.shape == (2, 8) and part[0, 0] == 3
    assert buffer.get_local_buffer_tensor(torch.float8_e4m3fn, use_rdma_buffer=True).numel() == 256
    for wrong in (
        dict(offset=1),
        dict(offset=1282),
        dict(offset=-2),
        dict(size=torch.Size((641,))),
        dict(size=torch.Size((640,)), offset=2),
    ):
        with pytest.raises(ValueError, match="offset: expected|size: expected at most"):
            buffer.get_local_buffer_tensor(torch.bfloat16, **wrong)


def test_destroy_frees_local_buffers():
    buffer = deep_ep.Buffer(num_nvl_bytes=1280, explicitly_destroy=True)
    buffer.get_local_buffer_tensor(torch.uint8)
    memory = weakref.ref(buffer._scratch[False])
    buffer.destroy()
    assert memory() is None


def test_weights_by_expert_of_no_selections():
    to = torch.full((4, 1), 7.0)
    spread_there(to, torch.empty((2, 0)), torch.empty((2, 0), dtype=torch.int32), zero=True, each=True)
    assert torch.equal(to, torch.zeros((4, 1)))


def test_events(buffer):
    event = buffer.capture()
    event.current_stream_wait()
    with event:
        pass
    with deep_ep.EventOverlap():
        pass
    with pytest.raises(AssertionError, match="there is no event"):
        deep_ep.EventOverlap().current_stream_wait()
    with buffer.get_comm_stream() as stream:
        stream.wait(deep_ep.EventHandle())
        stream.wait_event(event)
        stream.wait_stream(stream)
        stream.record_event().current_stream_wait()
        stream.synchronize()


def test_layout_of_many_ranks():
    """More than 8 ranks are nodes of 8; the layout is local."""
    idx = torch.randint(-1, 64, (50, 6))
    found = xep.layout(idx, 64, 16, 8)
    owners = torch.where(idx >= 0, idx // 4, -1)
    for node in range(2):
        assert int(found.tokens_per_node[node]) == int(((owners // 8 == node) & (idx >= 0)).any(1).sum())


def test_a_leak_is_reported():
    buffer = deep_ep.Buffer(explicitly_destroy=True)
    with pytest.warns(ResourceWarning, match=r"destroy\(\) was not called"):
        del buffer


def test_garbage_is_quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del deep_ep.Buffer().group


@pytest.mark.parametrize("hidden", [128, 512, 300])
def test_casts(hidden):
    x = torch.randn((7, hidden), generator=torch.Generator().manual_seed(hidden)) * torch.logspace(-6, 3, 7).unsqueeze(
        1
    )
    cast, scales = utils.per_token_cast_to_fp8(x.bfloat16())
    assert cast.dtype == torch.float8_e4m3fn and cast.shape == x.shape and scales.shape == (7, -(-hidden // 128))
    back = utils.per_token_cast_back(cast, scales)
    assert back.dtype == torch.bfloat16
    steps = scales.repeat_interleave(128, dim=1)[:, :hidden] * 2**-9  # of e4m3 below its least normal number
    assert bool(((back.float() - x.bfloat16().float()).abs() <= 0.07 * x.abs() + steps).all())
    assert utils.per_token_cast_back(cast[:0], scales[:0]).shape == (0, hidden)


def test_exponent_scales():
    cast = torch.ones((3, 512)).to(torch.float8_e4m3fn)
    packed = torch.tensor([[127 | 128 << 8 | 126 << 16 | 130 << 24]] * 3, dtype=torch.int64).to(torch.int32)
    back = utils.per_token_cast_back(cast, packed)
    assert back[:, ::128].tolist() == [[1.0, 2.0, 0.5, 8.0]] * 3
    cast, packed = cast[:1].expand(4, 512).contiguous(), packed[:1].expand(4, 1).contiguous()
    assert torch.equal(utils.per_token_cast_back(cast, packed.view(-1, 4)), utils.per_token_cast_back(cast, packed)), (
        "as DeepEP's tests"
    )
    assert torch.equal(utils.per_token_cast_back(cast, packed.T.contiguous().T), back[:1].expand(4, 512))


def test_comparisons():
    x = torch.randn((5, 64))
    assert utils.calc_diff(x, x) == 0 and utils.calc_diff(x, x + 0.1) > 1e-4
    assert utils.calc_diff(x[:0], x[:0]) == 0
    assert utils.hash_tensor(x) == utils.hash_tensor(x.flip(0)) != utils.hash_tensor(x + 1)
    for odd in (torch.zeros(3, dtype=torch.bfloat16), torch.zeros(5, dtype=torch.uint8), torch.zeros(0)):
        assert utils.hash_tensor(odd) == 0


def test_routing_helpers():
    x = torch.tensor([[3, 1, 3, -1], [-1, -1, -1, -1], [0, 1, 2, 3]])
    utils.inplace_unique(x, 4)
    assert x.tolist() == [[3, 1, -1, -1], [-1, -1, -1, -1], [0, 1, 2, 3]]
    scores = torch.ones((2, 6))
    assert utils.create_grouped_scores(scores, torch.tensor([[0], [2]]), 3).tolist() == [
        [1, 1, 0, 0, 0, 0],
        [0, 0, 0, 0, 1, 1],
    ]


def test_bench():
    calls = []
    mean, least, most = utils.bench(
        lambda: calls.append(1), num_warmups=2, num_tests=3, post_fn=lambda: calls.append(2)
    )
    assert 0 < least <= mean <= most and calls == [1, 2] * 5
