# SPDX-License-Identifier: BSD-3-Clause
"""deep_ep.comm, by the name that it had before."""

from ..comm import (
    NCCLCommHandle,
    destroy_all_managed_nccl_comm,
    get_logical_domain_size,
    get_nccl_comm_handle,
    get_physical_domain_size,
)

__all__ = [
    "NCCLCommHandle", "destroy_all_managed_nccl_comm", "get_logical_domain_size", "get_nccl_comm_handle",
    "get_physical_domain_size",
]  # fmt: skip
