# SPDX-License-Identifier: BSD-3-Clause
"""A dispatcher of SGLang's mixture-of-experts layers, for tokens in host memory. SGLang loads this by itself.

It is an entry point of sglang.srt.plugins, in each of SGLang's processes. Where the all-to-all of the experts is
MoeA2ABackend.CUSTOMIZED, for which SGLang has no dispatcher of its own, create_moe_dispatcher makes the one below; all
else is as it was. XEP_SGLANG: "0" turns it off; "1" makes an error of what is otherwise a warning and leaves SGLang as
it is, a version that is not known here.
"""

from __future__ import annotations

import logging
import os
from typing import Any

from .versions import require

_KNOWN = ("0.5.23",)
_TARGET = "sglang.srt.layers.moe.fused_moe_triton.layer.create_moe_dispatcher"


def register() -> None:
    """Called once in each process, before SGLang applies its hooks."""
    chosen = os.environ.get("XEP_SGLANG", "")
    if chosen == "0":
        return
    import sglang
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    try:
        require("sglang", sglang.__version__, _KNOWN)
    except ImportError as error:
        if chosen:
            raise
        logging.getLogger("sglang.plugins.xep").warning("xep: off: %s", error)
        return
    HookRegistry.register(_TARGET, _create_moe_dispatcher, HookType.AROUND)


def _create_moe_dispatcher(original: Any, moe_runner_config: Any, quant_method: Any) -> Any:
    from sglang.srt.layers.moe.utils import get_moe_a2a_backend

    if not get_moe_a2a_backend().is_customized():
        return original(moe_runner_config, quant_method)
    from .sglang_dispatcher import XepDispatcher

    return XepDispatcher(moe_runner_config)
