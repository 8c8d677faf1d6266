# SPDX-License-Identifier: BSD-3-Clause
"""The structs of xep.h, field by field; tests/test_structs.py compares them with a compiled probe."""

import ctypes
from ctypes import POINTER, c_char_p, c_int, c_int32, c_size_t, c_ssize_t, c_uint32, c_uint64, c_void_p

AllgatherFn = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_size_t)
LogFn = ctypes.CFUNCTYPE(None, c_void_p, c_int, c_char_p)
ConfigFn = ctypes.CFUNCTYPE(c_int, c_void_p, c_char_p, c_char_p, c_char_p, c_char_p)
ModeFn = ConfigFn


class SizedStruct(ctypes.Structure):
    """A struct whose first field is its size, set at construction as its _INIT macro does."""

    c_name: str

    def __init__(self, **fields: object) -> None:
        super().__init__(size=ctypes.sizeof(type(self)), **fields)


class LibraryInfo(SizedStruct):
    c_name = "xep_library_info_t"
    _fields_ = [
        ("size", c_size_t),
        ("version", c_char_p),
        ("build", c_char_p),
        ("library_path", c_char_p),
        ("ucx_version", c_char_p),
        ("ucx_path", c_char_p),
        ("pmix_version", c_char_p),
        ("pmix_path", c_char_p),
        ("simd", c_char_p),
    ]


class GroupParams(SizedStruct):
    c_name = "xep_group_params_t"
    _fields_ = [
        ("size", c_size_t),
        ("allgather", AllgatherFn),
        ("allgather_ctx", c_void_p),
        ("rank", c_uint32),
        ("nranks", c_uint32),
        ("timeout_ms", c_int32),
    ]


class GroupInfo(SizedStruct):
    c_name = "xep_group_info_t"
    _fields_ = [
        ("size", c_size_t),
        ("rank", c_uint32),
        ("nranks", c_uint32),
        ("node", c_uint32),
        ("nnodes", c_uint32),
        ("boot", c_char_p),
    ]


class PeerInfo(SizedStruct):
    c_name = "xep_peer_info_t"
    _fields_ = [("size", c_size_t), ("node", c_uint32), ("mapped", c_int), ("transport", c_char_p)]


class LayoutArgs(SizedStruct):
    c_name = "xep_layout_args_t"
    _fields_ = [
        ("size", c_size_t),
        ("tokens", c_uint64),
        ("topk", c_uint32),
        ("experts", c_uint32),
        ("nranks", c_uint32),
        ("ranks_per_node", c_uint32),
        ("topk_idx", c_void_p),
        ("topk_idx_stride", c_size_t),
        ("topk_idx_dtype", c_int),
    ]


class Layout(SizedStruct):
    c_name = "xep_layout_t"
    _fields_ = [
        ("size", c_size_t),
        ("tokens_per_rank", c_void_p),
        ("tokens_per_node", c_void_p),
        ("tokens_per_expert", c_void_p),
        ("token_in_rank", c_void_p),
    ]


class BufferParams(SizedStruct):
    c_name = "xep_buffer_params_t"
    _fields_ = [
        ("size", c_size_t),
        ("mode", c_char_p),
        ("experts", c_uint32),
        ("topk", c_uint32),
        ("hidden", c_uint32),
        ("scales", c_uint32),
        ("tokens", c_uint64),
        ("recv_rows", c_uint64),
        ("dtype", c_int),
        ("combine_dtype", c_int),
        ("slots", c_uint32),
        ("threads", c_uint32),
        ("timeout_ms", c_int32),
    ]


class BufferSize(SizedStruct):
    c_name = "xep_buffer_size_t"
    _fields_ = [("size", c_size_t), ("bytes", c_uint64), ("recv_rows", c_uint64)]


class BufferInfo(SizedStruct):
    c_name = "xep_buffer_info_t"
    _fields_ = [
        ("size", c_size_t),
        ("mode", c_char_p),
        ("bytes", c_uint64),
        ("recv_rows", c_uint64),
        ("slots", c_uint32),
        ("free_slots", c_uint32),
        ("threads", c_uint32),
        ("mapped_peers", c_uint32),
        ("operations", c_uint64),
    ]


class Waits(SizedStruct):
    c_name = "xep_waits_t"
    _fields_ = [
        ("size", c_size_t),
        ("operations", c_void_p),
        ("count", c_void_p),
        ("sum_ns", c_void_p),
        ("max_ns", c_void_p),
    ]


class DispatchArgs(SizedStruct):
    c_name = "xep_dispatch_args_t"
    _fields_ = [
        ("size", c_size_t),
        ("tokens", c_uint64),
        ("x", c_void_p),
        ("x_stride", c_size_t),
        ("dtype", c_int),
        ("hidden", c_uint32),
        ("topk", c_uint32),
        ("topk_idx", c_void_p),
        ("topk_idx_stride", c_size_t),
        ("topk_idx_dtype", c_int),
        ("topk_weights", c_void_p),
        ("topk_weights_stride", c_size_t),
        ("scales", c_void_p),
        ("nscales", c_uint32),
        ("scales_dtype", c_int),
        ("scales_token_stride", c_ssize_t),
        ("scales_stride", c_ssize_t),
        ("expert_alignment", c_uint32),
        ("capacity", c_uint64),
        ("cached", c_void_p),
        ("after", c_void_p),
        ("timeout_ms", c_int32),
        ("recv_rows_p", c_void_p),
        ("quant", c_int),
        ("arrangement", c_int),
        ("flags", c_uint32),
        ("reserved", c_uint32),
        ("expert_stats", c_void_p),
        ("wait_ns", c_void_p),
    ]


class Recv(SizedStruct):
    c_name = "xep_recv_t"
    _fields_ = [
        ("size", c_size_t),
        ("arrangement", c_int),
        ("rows", c_uint64),
        ("capacity", c_uint64),
        ("x", c_void_p),
        ("x_stride", c_size_t),
        ("dtype", c_int),
        ("hidden", c_uint32),
        ("topk", c_uint32),
        ("topk_idx_dtype", c_int),
        ("topk_idx", c_void_p),
        ("topk_weights", c_void_p),
        ("scales", c_void_p),
        ("nscales", c_uint32),
        ("scales_dtype", c_int),
        ("src_token", c_void_p),
        ("src_begin", c_void_p),
        ("rank_rows", c_void_p),
        ("first_expert", c_uint32),
        ("local_experts", c_uint32),
        ("expert_rows", c_void_p),
        ("scales_token_stride", c_ssize_t),
        ("scales_stride", c_ssize_t),
        ("quant", c_int),
        ("reserved", c_uint32),
        ("expert_begin", c_void_p),
        ("expert_count", c_void_p),
        ("pair_begin", c_void_p),
        ("pair_count", c_void_p),
    ]


class CombineArgs(SizedStruct):
    c_name = "xep_combine_args_t"
    _fields_ = [
        ("size", c_size_t),
        ("x", c_void_p),
        ("x_stride", c_size_t),
        ("dtype", c_int),
        ("hidden", c_uint32),
        ("topk_weights", c_void_p),
        ("topk_weights_stride", c_size_t),
        ("bias", c_void_p * 2),
        ("bias_stride", c_size_t * 2),
        ("out", c_void_p),
        ("out_stride", c_size_t),
        ("out_weights", c_void_p),
        ("out_weights_stride", c_size_t),
        ("after", c_void_p),
        ("timeout_ms", c_int32),
        ("flags", c_uint32),
        ("weights", c_void_p),
        ("weights_stride", c_size_t),
        ("wait_ns", c_void_p),
    ]


# every struct above, for the probe
STRUCTS = (
    LibraryInfo, GroupParams, GroupInfo, PeerInfo, LayoutArgs, Layout, BufferParams, BufferSize, BufferInfo,
    Waits, DispatchArgs, Recv, CombineArgs,
)  # fmt: skip

# name: (result, arguments)
PROTOTYPES: dict[str, tuple[object, list]] = {
    "xep_dtype_size": (c_size_t, [c_int]),
    "xep_version_string": (c_char_p, []),
    "xep_status_name": (c_char_p, [c_int]),
    "xep_status_text": (c_char_p, [c_int]),
    "xep_last_error": (c_char_p, []),
    "xep_log_set": (None, [LogFn, c_void_p]),
    "xep_library_query": (c_int, [POINTER(LibraryInfo)]),
    "xep_config_each": (None, [ConfigFn, c_void_p]),
    "xep_mode_each": (None, [ModeFn, c_void_p]),
    "xep_group_create": (c_int, [POINTER(GroupParams), POINTER(c_void_p)]),
    "xep_group_destroy": (None, [c_void_p]),
    "xep_group_abort": (None, [c_void_p]),
    "xep_group_barrier": (c_int, [c_void_p]),
    "xep_group_allgather": (c_int, [c_void_p, c_void_p, c_void_p, c_size_t]),
    "xep_group_query": (c_int, [c_void_p, POINTER(GroupInfo)]),
    "xep_group_peer": (c_int, [c_void_p, c_uint32, POINTER(PeerInfo)]),
    "xep_expert_range": (None, [c_uint32, c_uint32, c_uint32, POINTER(c_uint32), POINTER(c_uint32)]),
    "xep_layout": (c_int, [POINTER(LayoutArgs), POINTER(Layout)]),
    "xep_buffer_size": (c_int, [POINTER(BufferParams), c_uint32, POINTER(BufferSize)]),
    "xep_buffer_create": (c_int, [c_void_p, POINTER(BufferParams), POINTER(c_void_p)]),
    "xep_buffer_destroy": (None, [c_void_p]),
    "xep_buffer_reset": (c_int, [c_void_p]),
    "xep_buffer_memory": (c_int, [c_void_p, POINTER(c_void_p), POINTER(c_size_t)]),
    "xep_buffer_query": (c_int, [c_void_p, POINTER(BufferInfo)]),
    "xep_buffer_waits": (c_int, [c_void_p, c_int, POINTER(Waits)]),
    "xep_dispatch": (c_int, [c_void_p, c_void_p, c_void_p, c_void_p]),
    "xep_handle_recv": (c_void_p, [c_void_p]),
    "xep_combine": (c_int, [c_void_p, c_void_p, c_void_p]),
    "xep_handle_combine_input": (c_void_p, [c_void_p, c_void_p]),
    "xep_handle_release": (None, [c_void_p]),
    "xep_request_test": (c_int, [c_void_p]),
    "xep_request_wait": (c_int, [c_void_p]),
    "xep_request_wait_counts": (c_int, [c_void_p]),
    "xep_request_free": (None, [c_void_p]),
}
