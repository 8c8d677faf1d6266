# SPDX-License-Identifier: BSD-3-Clause
"""Buffer as DeepEP has it from V2 on: what differs from V1's is the order of arguments."""

from __future__ import annotations

from ..buffer import Buffer as V1Buffer
from .base import without


class Buffer(V1Buffer):
    """See V1's; there is no use_fabric, and internode_dispatch has no num_worst_tokens."""

    __init__ = without(V1Buffer.__init__, "use_fabric")
    internode_dispatch = without(V1Buffer.dispatch, "num_worst_tokens")
