# SPDX-License-Identifier: BSD-3-Clause
"""Wrong arguments: the exception names the argument, what it is, and what was expected."""

from __future__ import annotations

import ast
import inspect
import math
import pathlib
import re

import numpy as np
import pytest
from programs import run

import xep

T, K, E, H = 6, 2, 4, 32


@pytest.fixture(scope="module")
def buffer():
    with xep.Group() as group, group.buffer(E, K, H, T, dtype="float32", combine_dtype="float32", scales=2) as made:
        yield made


@pytest.fixture
def good():
    return {
        "x": np.ones((T, H), np.float32),
        "topk_idx": np.zeros((T, K), np.int64),
        "topk_weights": np.ones((T, K), np.float32),
    }


WRONG = {
    "no array": ("x", [[1.0]], TypeError, "x: expected a numpy array, a tensor or a CUDA array, got list"),
    "x of one dimension": ("x", np.ones(H, np.float32), ValueError,
        r"x: expected .* of shape \[any, any\], got float32 array of shape \(32,\)"),
    "x of complex": ("x", np.ones((T, H), np.complex64), TypeError, r"x: expected .*, got complex64 array"),
    "x of another byte order": ("x", np.ones((T, H), ">f4"), TypeError, "x: expected"),
    "x by column": ("x", np.ones((H, T), np.float32).T, ValueError,
        r"x: expected rows of adjacent elements.*strides \(128 or more, 4\)"),
    "x broadcast": ("x", np.broadcast_to(np.ones(H, np.float32), (T, H)), ValueError,
        "x: expected rows of adjacent elements"),
    "x too long": ("x", np.ones((T + 1, H), np.float32), ValueError,
        r"topk_idx: expected INT32 or INT64 of shape \[7, any\]|invalid tokens: 7"),
    "x too wide": (
        "x", np.ones((T, 2 * H), np.float32), ValueError, "XEP_ERR_INVALID: row too long: 64 elements of fp32"),
    "float indices": ("topk_idx", np.zeros((T, K), np.float32), TypeError,
        r"topk_idx: expected INT(64|32) or INT(64|32) of shape \[6, any\], got float32"),
    "x backwards": ("x", np.ones((T, H), np.float32)[::-1], ValueError,
        r"x: expected rows of adjacent .* got strides \(-128, 4\)"),
    "rows backwards": ("x", np.ones((T, H), np.float32)[:, ::-1], ValueError,
        r"x: expected rows of adjacent .* got strides \(128, -4\)"),
    "x of bool": ("x", np.ones((T, H), bool), TypeError, "x: expected .*, got bool array"),
    "x of four dimensions": ("x", np.ones((T, 2, 2, 2), np.float32), ValueError,
        r"x: expected .* of shape \[any, any\]"),
    "x without dimensions": ("x", np.ones((), np.float32), ValueError,
        r"x: expected .*, got float32 array of shape \(\)"),
    "capacity of a float": ("capacity", 1.5, ValueError, "capacity: expected an integer from 0 to .*, got 1.5"),
    "negative capacity": ("capacity", -1, ValueError, "capacity: expected an integer from 0 to .*, got -1"),
    "wide alignment": ("expert_alignment", 2**32, ValueError,
        "expert_alignment: expected an integer from 0 to 4294967295"),
    "after no request": ("after", 3, TypeError, "after: expected a Request, got int"),
    "few indices": ("topk_idx", np.zeros((T - 1, K), np.int64), ValueError,
        r"topk_idx: .* \[6, any\], got int64 array of shape \(5, 2\)"),
    "no indices": ("topk_idx", None, TypeError, "topk_idx: expected an array"),
    "expert out of range": ("topk_idx", np.full((T, K), E), ValueError, "XEP_ERR_INVALID: .*4"),
    "too many selections": ("topk_idx", np.zeros((T, K + 1), np.int64), ValueError, "topk"),
    "double weights": ("topk_weights", np.ones((T, K)), TypeError,
        r"topk_weights: expected FP32 of shape \[6, 2\], got float64"),
    "few weights": ("topk_weights", np.ones((T, K - 1), np.float32), ValueError,
        r"topk_weights: expected FP32 of shape \[6, 2\]"),
    "double scales": ("scales", np.ones((T, 2)), TypeError,
        "scales: expected .*, got float64"),
    "many scales": ("scales", np.ones((T, 3), np.float32), ValueError, "invalid nscales: 3 .at most 2"),
    "payloads in a list": ("payloads", [np.ones((T, 2), np.uint8)], TypeError,
        "payloads: expected a tuple of at most 8 arrays"),
    "nine payloads": ("payloads", (np.ones((T, 1), np.uint8),) * 9, TypeError,
        "payloads: expected a tuple of at most 8 arrays"),
    "payloads of another T": ("payloads", (np.ones((T + 1, 1), np.uint8),), ValueError, "payloads"),
    "scales of one dimension": ("scales", np.ones(T, np.float32), ValueError,
        r"scales: expected .* of shape \[6, any\]"),
    "stats of mode ll": ("expert_stats", np.zeros(E, np.int64), TypeError,
        r"expert_stats: expected INT32 of shape \[4\], got int64"),
    "unknown option": ("worst", 3, TypeError, "unexpected keyword argument 'worst'"),
    "unknown type": ("dtype", "float7", TypeError, "dtype: expected one of BF16"),
    "a cast": ("dtype", "bfloat16", TypeError, "dtype: expected None or FP32, which x is, got BF16 .*nothing is cast"),
    "a cast of that width": ("dtype", "int32", TypeError, "dtype: expected None or FP32, which x is, got INT32"),
    "unknown quant": ("quant", "e4m4", ValueError, 'quant: expected "none", "e4m3", .* or "logfmt", got .e4m4'),
    "unknown arrangement": ("arrangement", "by expert", ValueError,
        'arrangement: expected "default", "rank", "compact" or "padded", got .by expert'),
    "quant of a combine": ("quant", "logfmt", xep.UnsupportedError,
        "mode normal does not support quant logfmt of a dispatch"),
    "arrangement of mode ll": ("arrangement", "padded", xep.UnsupportedError, "support XEP_ROWS_BY_EXPERT_PADDED"),
    "no handle": ("cached", 3, ValueError, "topk_idx, topk_weights: expected None with cached"),
    "negative timeout": ("timeout", -1.0, ValueError, "timeout: expected seconds above 0"),
    "nan timeout": ("timeout", math.nan, ValueError, "timeout: expected seconds above 0"),
    "waits of doubles": ("wait_ns", np.zeros(1), TypeError, "wait_ns: expected INT64"),
    "waits of two ranks": ("wait_ns", np.zeros(2, np.int64), ValueError, r"wait_ns: expected INT64 of shape \[1\]"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_dispatch(buffer, good, case):
    name, value, error, text = WRONG[case]
    buffer.dispatch(**good).release()  # what was right the last time is not checked again
    with pytest.raises(error, match=text):
        buffer.dispatch(**{**good, name: value})
    assert buffer.info().free_slots == 2


COMBINE = {
    "short x": (dict(x=np.ones((T - 1, H), np.float32)), ValueError,
        r"x: expected \[6, H\], the rows received, got float32 array of shape \(5, 32\)"),
    "integer x": (dict(x=np.ones((T, H), np.int32)), TypeError, "x: expected"),
    "narrow out": (dict(out=np.ones((T, H - 1), np.float32)), ValueError, r"out: expected FP32 of shape \[6, 32\]"),
    "double out": (dict(out=np.ones((T, H))), TypeError, "out: expected FP32"),
    "three biases": (dict(bias=[np.ones((T, H), np.float32)] * 3), ValueError, "bias: expected at most 2, got 3"),
    "half bias": (dict(bias=np.ones((T, H), np.float16)), TypeError, r"bias\[0\]: expected FP32"),
    "out_weights alone": (dict(out_weights=np.ones((T, K), np.float32)), ValueError,
        "topk_weights: expected an array, as out_weights is given"),
    "waits of two ranks": (dict(wait_ns=np.zeros(2, np.int64)), ValueError, r"wait_ns: expected INT64 of shape \[1\]"),
    "a cast": (dict(dtype="float16"), TypeError, "dtype: expected None or FP32, which x is, got FP16 .*is cast"),
    "weights of mode ll": (dict(weights=np.ones((T, K), np.float32)), xep.UnsupportedError,
        "mode normal does not support weights of a combine"),
    "out of another type": (dict(x=np.ones((T, H), np.uint16), out=np.ones((T, H), np.float16)), TypeError,
        r"out: expected BF16 of shape \[6, 32\], got float16"),
    "bias of another type": (dict(x=np.ones((T, H), np.uint16), bias=np.ones((T, H), np.float16)), TypeError,
        r"bias\[0\]: expected BF16 of shape \[6, 32\], got float16"),
    "short weights": (dict(topk_weights=np.ones((1, K), np.float32)), ValueError, r"topk_weights: expected \[6, 2\]"),
}  # fmt: skip


@pytest.mark.parametrize("case", COMBINE)
def test_combine(buffer, good, case):
    options, error, text = COMBINE[case]
    with buffer.dispatch(**good) as handle:
        with pytest.raises(error, match=text):
            handle.combine(**{"x": np.ones((T, H), np.float32), **options})


def test_rows_wider_than_the_default(good):
    """The argument, its default and the remedy."""
    index = good["topk_idx"]
    text = r"rows of at most 64 bytes \(32 elements of BF16, the {0} of this Buffer\), got float32 .*{0}=.float32"
    with xep.Group() as group, group.buffer(E, K, H, T) as narrow:
        with pytest.raises(ValueError, match=text.format("dtype") + r". \(default: .bfloat16.\)"):
            narrow.dispatch(good["x"], index)
        with narrow.dispatch(good["x"].astype(np.float16), index) as handle:
            with pytest.raises(ValueError, match=text.format("combine_dtype")):
                handle.combine(good["x"])


def test_log_of_no_function():
    with pytest.raises(TypeError, match="set_log: expected a function of level and text, or None, got 3"):
        xep.set_log(3)


def test_cached_of_no_handle(buffer, good):
    with pytest.raises(ValueError, match="cached: expected a handle of this buffer, got int"):
        buffer.dispatch(good["x"], cached=3)


def test_read_only_output(buffer, good):
    out = np.zeros((T, H), np.float32)
    out.flags.writeable = False
    with (
        buffer.dispatch(**good) as handle,
        pytest.raises(ValueError, match="out: expected an array that may be written"),
    ):
        handle.combine(np.ones((T, H), np.float32), out=out)


def read_only(array):
    array.flags.writeable = False
    return array


WRONG_OUT = {
    "double": (np.zeros((T, H)), TypeError, "out: expected FP32"),
    "narrow": (np.zeros((T, H - 1), np.float32), ValueError, r"out: expected FP32 of shape \[6, 32\]"),
    "by column": (np.zeros((H, T), np.float32).T, ValueError, "out: expected rows of adjacent elements"),
    "read-only": (read_only(np.zeros((T, H), np.float32)), ValueError, "out: expected an array that may be written"),
}


@pytest.mark.parametrize("case", WRONG_OUT)
def test_output_after_one_that_was_right(buffer, good, case):
    wrong, error, text = WRONG_OUT[case]
    with buffer.dispatch(**good) as handle:
        handle.combine_input()[:] = handle.recv.x
        right = [np.zeros((T, H), np.float32) for _ in range(2)]
        for out in right:
            assert handle.combine(out=out) is out and (out == 1).all()
        with pytest.raises(error, match=text):
            handle.combine(out=wrong)
        assert (handle.combine() == 1).all()


def test_same_form_other_arrays(buffer, good):
    """Addresses are taken anew, shapes and strides when they differ."""
    wide = np.arange(T * 2 * H, dtype=np.float32).reshape(T, 2 * H)
    for x in (
        wide[:, :H],
        wide[:, H:],
        wide[:, :H].copy(),
        wide[:, H:].copy(),
        wide[1:, :H].copy(),
        wide[:0, :H],
        wide[:1, :H],
    ):
        index, weights = good["topk_idx"][: len(x)].copy(), np.full((len(x), K), x.sum(), np.float32)
        with buffer.dispatch(x, index, weights) as handle:
            assert (handle.tokens, handle.rows) == x.shape[:1] * 2
            assert (
                (handle.recv.x == x).all()
                and (handle.recv.topk_idx == 0).all()
                and (handle.recv.topk_weights == x.sum()).all()
            )
            with pytest.raises(ValueError, match=rf"out: expected FP32 of shape \[{len(x)}, 32\]"):
                handle.combine(
                    out=np.zeros((len(x) + 1, H), np.float32)
                )  # for T - 1 tokens the form of the last output
            handle.combine_input()[:] = x
            assert (handle.combine() == x).all()


def test_no_tokens_but_weights(buffer, good):
    """Tensors without elements have no address, but weights are sent."""
    torch = pytest.importorskip("torch")
    x, index, weights = (torch.from_numpy(array[:0].copy()) for array in good.values())
    for _ in range(2):
        with buffer.dispatch(x, index, weights) as handle:
            assert handle.recv.topk_weights.shape == (0, K), "they are received, too"


def test_unsupported_is_said(buffer, good):
    with pytest.raises(xep.UnsupportedError) as caught:
        buffer.dispatch(**good, arrangement=xep.Rows.BY_EXPERT_COMPACT)
    assert caught.value.status == xep.Status.ERR_UNSUPPORTED and isinstance(caught.value, NotImplementedError)


def test_tensors_on_another_device(buffer, good):
    torch = pytest.importorskip("torch")
    x, index, weights = (torch.from_numpy(array) for array in good.values())
    buffer.dispatch(x, index, weights).release()
    with pytest.raises(TypeError, match="x: expected an array in host memory, got torch.strided on meta"):
        buffer.dispatch(x.to("meta"), index, weights)
    with pytest.raises(TypeError, match="x: expected .*in host memory, got torch.sparse_coo on cpu"):
        buffer.dispatch(x.to_sparse(), index, weights)
    with pytest.raises(TypeError, match="topk_idx: expected an array in host memory, got torch.strided on meta"):
        buffer.dispatch(x, index.to("meta"), weights)
    buffer.dispatch(x, index, weights).release()


@pytest.mark.parametrize(
    "wrong, text",
    [
        (dict(experts=0), "invalid experts: 0"),
        (dict(topk=5), r"invalid topk: 5 \(1 to 4, the experts\)"),
        (dict(hidden=-1), "hidden: expected an integer from 0"),
        (dict(tokens=2.5), "tokens: expected an integer from 0 to .* got 2.5"),
        (dict(mode="nothing"), "nothing"),
        (dict(combine_dtype="uint8"), "combine_dtype"),
    ],
)
def test_buffer(wrong, text):
    with xep.Group() as group, pytest.raises((ValueError, xep.XepError), match=text):
        group.buffer(**{**dict(experts=E, topk=K, hidden=H, tokens=T), **wrong})


def test_group():
    for options, text in (
        (dict(rank=0), "rank, nranks: expected None without an allgather"),
        (dict(comm=object()), "comm: expected a torch.distributed process group or a communicator.*without rank"),
        (dict(allgather=lambda b: [b], rank=1, nranks=1), r"rank: expected 0 to 0 \(nranks - 1\), got 1"),
        (dict(allgather=3, rank=0, nranks=1), "allgather, rank, nranks: expected a function"),
        (dict(timeout=0), "timeout: expected seconds above 0"),
    ):
        with pytest.raises((TypeError, ValueError), match=text):
            xep.Group(**options)
    group = xep.Group()
    with pytest.raises(ValueError, match="rank: expected an integer from 0 to 0, got 1"):
        group.peer(1)
    group.close()
    group.close()
    with pytest.raises(ValueError, match="the group is closed"):
        group.barrier()


def test_errors_carry_status_and_sentence():
    with xep.Group() as group, pytest.raises(xep.InvalidError) as caught:
        group.buffer(E, 5, H, T)
    error = caught.value
    assert error.status == xep.Status.ERR_INVALID and isinstance(error, ValueError)
    assert str(error) == f"XEP_ERR_INVALID: {error.reason}" and "invalid topk: 5" in error.reason


def test_layout_against_loops():
    rng = np.random.default_rng(0)
    for tokens, topk, experts, nranks in ((0, 2, 4, 2), (50, 3, 10, 4), (7, 1, 3, 5)):
        idx = rng.integers(-1, experts, (tokens, topk))
        found = xep.layout(idx, experts, nranks, 2)
        ranges = [xep.expert_range(experts, nranks, rank) for rank in range(nranks)]
        goes = np.array(
            [[any(first <= e < first + count for e in row) for first, count in ranges] for row in idx.tolist()]
        )
        goes = goes.reshape(tokens, nranks)
        np.testing.assert_array_equal(found.token_in_rank, goes)
        np.testing.assert_array_equal(found.tokens_per_rank, goes.sum(0))
        np.testing.assert_array_equal(found.tokens_per_expert, [(idx == e).sum() for e in range(experts)])
        nodes = [goes[:, node : node + 2].any(1).sum() for node in range(0, nranks, 2)]
        np.testing.assert_array_equal(found.tokens_per_node, nodes)


def test_bfloat16_bits():
    values = np.array([0, -0.0, 1, 1.00390625, 1.01171875, 3.4e38, np.inf, -np.inf, 1e-40], np.float32)
    bits = xep.to_bfloat16(values)
    assert bits.tolist() == [0, 0x8000, 0x3F80, 0x3F80, 0x3F82, 0x7F80, 0x7F80, 0xFF80, 1]
    assert np.isnan(xep.from_bfloat16(xep.to_bfloat16(np.array([np.nan], np.float32))))
    np.testing.assert_array_equal(xep.to_bfloat16(xep.from_bfloat16(bits)), bits)


def test_library_queries():
    assert re.match(r"\d+\.\d+\.\d+", xep.version()) and xep.__version__ == xep.version()
    assert xep.library_info().version == xep.version() and xep.library_info().ucx_version
    names = {variable.name for variable in xep.config()}
    assert {"XEP_MODE", "XEP_TIMEOUT", "XEP_THREADS"} <= names
    assert {mode.name for mode in xep.modes() if mode.reason is None} >= {"normal", "ll"}
    normal, ll = xep.mode_query("normal"), xep.mode_query("ll", memory="host")
    assert "return_weights" in normal.features and "weigh" in ll.features
    assert xep.Rows.BY_EXPERT_PADDED in ll.arrangements - normal.arrangements and xep.Quant.NVFP4 in normal.casts
    assert ll.combine_dtypes == {xep.Dtype.BF16, xep.Dtype.FP16, xep.Dtype.FP32}
    size = xep.buffer_size(4, experts=E, topk=K, hidden=H, tokens=T)
    assert size.recv_rows >= 4 * T and size.bytes > size.node_bytes > size.recv_rows * H * 2
    flat = xep.buffer_size(4, experts=E, topk=K, hidden=H, tokens=T, path="flat")
    some = xep.buffer_size(4, experts=E, topk=K, hidden=H, tokens=T, path="nodes", pass_rows=5)
    assert flat.bytes < some.bytes < size.bytes
    with pytest.raises(ValueError, match='path: expected "auto", "flat" or "nodes", got \'node\''):
        xep.buffer_size(4, experts=E, topk=K, hidden=H, tokens=T, path="node")
    low, tight = (
        xep.buffer_size(4, experts=E, topk=K, hidden=H, tokens=T, mode="ll", pass_rows=rows) for rows in (0, 4)
    )
    assert tight.bytes < low.bytes and tight.node_bytes == low.node_bytes and tight.recv_rows == low.recv_rows


def test_log_goes_where_it_is_sent():
    run(
        """
        import xep
        lines = []
        xep.set_log(lambda level, message: lines.append((level, message)))
        xep.Group().close()
        assert any(level == 1 and "XEP_NO_SUCH" in message for level, message in lines), lines
        count = len(lines)
        xep.set_log(None)
        """,
        XEP_NO_SUCH="1",
    )


def test_logging_gets_the_messages():
    run(
        """
        import logging, xep
        seen = []
        handler = logging.Handler()
        handler.emit = seen.append
        logging.getLogger("xep").addHandler(handler)
        xep.use_logging()
        xep.Group().close()
        assert any(r.levelno == logging.WARNING and "XEP_NO_SUCH" in r.getMessage() for r in seen), seen
        """,
        XEP_NO_SUCH="1",
    )


class Nothing:
    """What no keyword takes, not even one that is true or false."""

    def __bool__(self):
        raise TypeError("neither true nor false")


def test_hints_name_every_keyword():
    """The keywords that type checkers know are those that there are."""
    stub = ast.parse((pathlib.Path(xep.__file__).parent / "_ext.pyi").read_text())
    hints = {
        node.name: {item.target.id for item in node.body}
        for node in stub.body
        if isinstance(node, ast.ClassDef) and node.name.endswith("Options")
    }

    def keywords(function) -> set:
        return {name for name, p in inspect.signature(function).parameters.items() if p.kind is p.KEYWORD_ONLY}

    for name, functions in (
        ("DispatchOptions", (xep.Buffer.dispatch, xep.Buffer.dispatch_async)),
        ("CombineOptions", (xep.Handle.combine, xep.Handle.combine_async)),
    ):
        for function in functions:
            assert hints[name] == keywords(function)
    with xep.Group() as group:
        for option in xep.params.BufferOptions.__annotations__:
            with pytest.raises((TypeError, ValueError, xep.XepError)) as caught:
                group.buffer(E, K, H, T, **{option: Nothing()})
            assert "unexpected keyword" not in str(caught.value)
        with pytest.raises(TypeError, match="unexpected keyword argument 'worst'"):
            group.buffer(E, K, H, T, worst=1)


def test_methods_look_like_methods():
    assert xep.Buffer.dispatch.__doc__.startswith("Sends every token") and xep.Buffer.dispatch.__name__ == "dispatch"
    assert list(inspect.signature(xep.Buffer.dispatch).parameters)[:3] == ["self", "x", "topk_idx"]
    assert "received rows" in xep.Handle.recv.__doc__
    with pytest.raises(TypeError):
        xep.Buffer.dispatch()
