# SPDX-License-Identifier: BSD-3-Clause
"""What V2.5 has by this name, and V2 in utils.comm."""

from .utils.comm import (
    NCCLCommHandle,
    barrier,
    destroy_all_managed_nccl_comm,
    get_comm_stream,
    get_logical_domain_size,
    get_nccl_comm_handle,
    get_physical_domain_size,
)

__all__ = [
    "NCCLCommHandle", "barrier", "destroy_all_managed_nccl_comm", "get_comm_stream", "get_logical_domain_size",
    "get_nccl_comm_handle", "get_physical_domain_size",
]  # fmt: skip
