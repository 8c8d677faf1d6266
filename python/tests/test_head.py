# SPDX-License-Identifier: BSD-3-Clause
"""What tests of DeepEP's own import from V2 on: deep_ep.utils, and a program as theirs are, over init_dist()."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import textwrap

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import programs  # noqa: E402

import deep_ep  # noqa: E402
import xep  # noqa: E402
from deep_ep.utils import envs, find_pkgs, gate, math, semantic, testing  # noqa: E402


def test_names():
    import deep_ep._C
    import deep_ep.buffers.elastic
    import deep_ep.buffers.legacy
    import deep_ep.utils.comm

    assert deep_ep._C.Config is deep_ep.Config and deep_ep.buffers.elastic.ElasticBuffer is deep_ep.ElasticBuffer
    assert deep_ep.utils.comm.get_physical_domain_size is deep_ep.comm.get_physical_domain_size
    assert deep_ep.comm.get_nccl_comm_handle(None).get() == 0
    for name in deep_ep.__all__:
        assert getattr(deep_ep, name) is not None
    assert (deep_ep.get_num_allocation_alignment(), deep_ep.get_num_rdma_alignment()) == (2 << 20, 64)
    assert deep_ep.get_num_tma_alignment() == 32
    assert isinstance(deep_ep.EventHandle(), deep_ep.utils.EventHandle)
    with pytest.raises(AttributeError, match="no attribute 'AnyBuffer'"):
        deep_ep.AnyBuffer  # noqa: B018


@pytest.mark.parametrize(
    "chosen, imports, version, eighth",
    [
        (None, "Buffer", "2.1.0", "use_fabric"),
        (None, "EPBuffer", "2.5.0", "use_fabric"),
        ("1", "EPBuffer", "1.2.1", "use_fabric"),
        ("2", "Buffer", "2.1.0", "explicitly_destroy"),
        ("2.5", "Buffer", "2.5.0", "explicitly_destroy"),
    ],
)
def test_version(chosen, imports, version, eighth):
    """By what a program imports, or a variable, with which the order of arguments goes."""
    done = programs.run(
        f"""
        from deep_ep import {imports}
        import deep_ep, inspect
        order = list(inspect.signature(deep_ep.Buffer.__init__).parameters)
        print(deep_ep.__version__, order[8], "num_worst_tokens" in inspect.signature(
            deep_ep.Buffer.internode_dispatch).parameters)
        """,
        python=os.environ.get("XEP_TEST_FORKS", sys.executable),
        DEEP_EP_VERSION=chosen,
    )
    assert done.stdout.split() == [f"{version}+xep{xep.version()}", eighth, str(eighth == "use_fabric")]


def test_unknown_version():
    command = [os.environ.get("XEP_TEST_FORKS", sys.executable), "-c", "import deep_ep"]
    environment = dict(os.environ, DEEP_EP_VERSION="3", PYTHONPATH=":".join(sys.path))
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert "ImportError: DEEP_EP_VERSION: expected 1, 2 or 2.5, got 3" in done.stderr


def test_legacy_order():
    """V2's Buffer is V1's, but for the order."""
    from deep_ep.buffers.legacy import Buffer

    made = Buffer(None, 0, 0, False, 24, True, False, True)
    assert made.explicitly_destroy and not made.enable_shrink and isinstance(made, deep_ep.Buffer)
    topk_idx = torch.tensor([[0], [1]])
    counts, _, experts, where, _ = made.get_dispatch_layout(topk_idx, 2)
    layout = (counts, None, where, experts)
    got = made.internode_dispatch(
        torch.ones((2, 64)), None, *layout, topk_idx, torch.ones((2, 1)), 1, deep_ep.Config(8), None, True
    )
    got[-1].current_stream_wait()
    assert got[0].shape == (2, 64)
    del got
    made.destroy()
    assert "config" == list(inspect.signature(Buffer.internode_dispatch).parameters)[10]


def test_bias():
    one = torch.ones(2)
    assert [deep_ep.Buffer._unpack_bias(bias) for bias in (None, one, (None, one))] == [
        (None, None), (one, None), (None, one)
    ]  # fmt: skip
    with pytest.raises(AssertionError, match="bias: expected two, got 1"):
        deep_ep.Buffer._unpack_bias((one,))


def test_arithmetic():
    assert math.safe_div(0, 0) == 0 and math.safe_div(3, 2) == 1.5
    with pytest.raises(ZeroDivisionError):
        math.safe_div(1, 0)
    assert math.ceil_div(7, 4) == 2 and math.align(x=7, y=4) == 8
    x, y = torch.ones(3), torch.zeros((2, 2), dtype=torch.int16)
    assert math.count_bytes(x, None, (y, [x])) == 12 + 8 + 12
    assert math.hash_tensors(x, (y, None), [x]) == math.hash_tensor(y)


def test_caches_of_methods():
    class Counter:
        calls = 0

        @semantic.weak_lru(maxsize=None)
        def double(self, n):
            self.calls += 1
            return 2 * n

    one, two = Counter(), Counter()
    assert [one.double(3), one.double(3), two.double(3)] == [6, 6, 6] and (one.calls, two.calls) == (1, 1)
    assert semantic.value_or(None, 5) == 5 and semantic.value_or(0, 5) == 0


@pytest.mark.parametrize("precise", [False, True])
@pytest.mark.parametrize("ratio", [0.5, 1.0, 2.0])
def test_unbalanced_scores(ratio, precise):
    torch.manual_seed(5)
    scores = gate.get_unbalanced_scores(1024, 32, 8, 4, ratio, precise)
    assert scores.shape == (1024, 32) and scores.dtype == torch.float32 and bool((scores > 0).all())
    chosen = scores.topk(4, dim=1).indices // 4
    counts = [sum(rank in row for row in chosen.tolist()) for rank in range(8)]
    found = counts[0] / (sum(counts[1:]) / 7)
    assert abs(found / ratio - 1) < (0.01 if precise else 0.12), found


def test_timing(tmp_path, capfd):
    def work():
        print("nothing is to be seen of this")
        torch.ones((64, 64)) @ torch.ones((64, 64))

    options = dict(num_tests=3, suppress_kineto_output=True, flush_l2=False, barrier_comm_profiling=True)
    options.update(barrier=lambda: None)
    matmul, whole = testing.bench_kineto(
        work, ("aten::mm", "dispatch_impl"), **options, trace_path=str(tmp_path / "trace")
    )
    assert 0 < matmul < whole, "of a kernel that is not here it is the time of the call"
    one, two = testing.bench_kineto(lambda: (work(), work()), "aten::mm", **options, num_kernels_per_period=2)
    assert one > 0 and two > 0 and (tmp_path / "trace").stat().st_size > 0
    testing.flush_l2_cache()
    assert testing.parse_num_bytes("64M") == 64 << 20 and testing.parse_num_bytes(" 1.5 KiB") == 1536
    for wrong in ("", "M", "-1", "1.2.3k", "0"):
        with pytest.raises(ValueError, match="expected a number above 0"):
            testing.parse_num_bytes(wrong)
    assert envs.get_nvlink_gbs() > 0 and envs.get_rdma_gbs() >= 0 and not envs.check_fast_rdma_atomic_support()


def test_packages(monkeypatch, tmp_path):
    assert find_pkgs.find_pkg_root("nothing-of-that-name", optional=True) is None
    with pytest.raises(AssertionError, match="found no package nvidia-nothing-of-that-name"):
        find_pkgs.find_pkg_root("nothing-of-that-name")
    monkeypatch.setenv("EP_NCCL_ROOT_DIR", str(tmp_path))
    assert find_pkgs.find_nccl_root() == str(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="libnccl.so"):
        find_pkgs.get_nccl_lib_name(str(tmp_path))


PROGRAM = """
    import itertools, sys, torch, torch.distributed as dist, deep_ep
    from deep_ep.utils.envs import dist_print, get_global_seed, get_local_seed, init_dist, init_seed
    from deep_ep.utils.gate import get_unbalanced_scores
    from deep_ep.utils.math import per_token_cast_back, per_token_cast_to_fp8
    from deep_ep.utils.refs import combine, dispatch, generate_pre_combine_data, ordered_accumulate

    T, H, K, E = 40, 256, 3, 8
    rank, size, group = init_dist(int(sys.argv[1]), 2, seed=4)
    assert (get_global_seed(), get_local_seed()) == (4, 4 + rank) and torch.get_default_dtype() == torch.bfloat16
    assert deep_ep.get_physical_domain_size(group) == (1, 2) and deep_ep.get_logical_domain_size(group) == (1, 2)
    options = dict(num_max_tokens_per_rank=T, hidden=H, num_topk=K, explicitly_destroy=True)
    buffers = [deep_ep.EPBuffer(group, allow_multiple_reduction=multiple, **options) for multiple in (True, False)]
    weights, topk_idx = get_unbalanced_scores(T - rank, E, size, K, 2.0, False).topk(K, dim=1)
    topk_idx[torch.rand(topk_idx.shape) < 0.2] = -1
    rows = torch.randn((T - rank, H), dtype=torch.bfloat16)
    bias = torch.randn((T - rank, H), dtype=torch.bfloat16)
    for buffer, x in itertools.product(buffers, (rows, per_token_cast_to_fp8(rows))):
        want_x, want_idx, want_weights, sources, counts = dispatch(x, topk_idx, weights, T, E)
        for expand in (False, True):
            recv_x, recv_idx, recv_weights, handle, _ = buffer.dispatch(
                x, topk_idx, weights, num_experts=E, do_expand=expand)
            meta = handle.recv_src_metadata
            order = meta[:, 0].sort().indices
            assert torch.equal(meta[order, 0], sources) and counts.sum() == len(meta)
            if expand:
                first = meta[:, 2:].clamp(min=0)[torch.arange(len(meta)), (meta[:, 2:] >= 0).to(torch.int8).argmax(1)]
                recv_x = tuple(one[first] for one in recv_x) if isinstance(x, tuple) else recv_x[first]
            else:
                assert torch.equal(recv_idx[order], want_idx)
                here = want_idx >= 0
                assert torch.equal(recv_weights[order][here], want_weights[here])
            for got, want in zip(*((one if isinstance(one, tuple) else (one,)) for one in (recv_x, want_x))):
                assert torch.equal(got[order].view(torch.uint8), want.view(torch.uint8))
            y = generate_pre_combine_data(meta[:, 0], T, K, H)
            y[want_idx == -1] = 0
            if expand:
                given = torch.empty((handle.num_expanded_tokens + 1, H), dtype=torch.bfloat16)
                given[meta[:, 2:].flatten()] = y.view(-1, H)
                given = given[:-1]
            else:
                given = ordered_accumulate(y)
            mine = generate_pre_combine_data(rank * T + torch.arange(T - rank), T, K, H)
            wanted = combine(mine, topk_idx, 1, size, E, bias, not expand or buffer is buffers[0], False)
            assert torch.equal(buffer.combine(given, handle, bias=bias)[0], wanted), "bit for bit"
    init_seed(9)
    dist_print(f"rank {rank}")
    dist_print("once", once_in_node=True)
    for buffer in buffers:
        buffer.destroy()
    dist.destroy_process_group()
"""


def test_program():
    """Two processes, as DeepEP's tests spawn them."""
    python = os.environ.get("XEP_TEST_FORKS", sys.executable)
    environment = dict(os.environ, MASTER_PORT=str(programs.free_ports(1)), PYTHONPATH=":".join(sys.path))
    environment["XEP_LIBRARY"] = xep.library_info().library_path
    ranks = [
        subprocess.Popen(
            [python, "-c", textwrap.dedent(PROGRAM), str(rank)], env=environment, stdout=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    try:
        told = [rank.communicate(timeout=90 * programs.SLOW)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0]
    assert told == ["rank 0\nonce\n", "rank 1\n"]
