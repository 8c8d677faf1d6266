# SPDX-License-Identifier: BSD-3-Clause
"""Expert parallelism for vLLM's CPU backend, beside data-parallel attention. vLLM loads this by itself.

It is an entry point of vllm.general_plugins, in each of vLLM's processes: where xep is installed, vLLM's options
data_parallel_size and enable_expert_parallel work on CPU. XEP_VLLM: "0" turns it off; "1" makes an error of what
is otherwise a warning and leaves vLLM as it is, a version that is not known here.

What vLLM's platform says is its communicator is replaced by one whose experts' tokens travel through xep
(vllm_all2all.py); nothing else of vLLM is touched until such a communicator is made.
"""

from __future__ import annotations

import logging
import os

from . import vllm_eplb
from .versions import require

_COMMUNICATOR = "xep.integrations.vllm_all2all.XepCommunicator"
_KNOWN = ("0.32.0",)


def register() -> None:
    """Called once or several times in each process."""
    chosen = os.environ.get("XEP_VLLM", "")
    if chosen == "0":
        return
    import vllm
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    try:
        require("vllm", vllm.__version__, _KNOWN)
    except ImportError as error:
        if chosen:
            raise
        logging.getLogger("vllm.plugins.xep").warning("xep: off: %s", error)
        return
    vllm_eplb.allow_option()
    type(current_platform).get_device_communicator_cls = classmethod(lambda cls: _COMMUNICATOR)
