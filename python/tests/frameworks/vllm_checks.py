# SPDX-License-Identifier: BSD-3-Clause
"""Checks of the plugin for which no engine is started: test_vllm.py has each in a process of its own."""

from __future__ import annotations

import logging
import os
import types

import pytest
import vllm
from vllm.platforms import current_platform

import xep.integrations.vllm as integration


def what_is_refused() -> None:
    from xep.integrations.vllm_all2all import _refusal

    def refusal(lora=None, **changed):
        parallel = dict(tensor_parallel_size=1, pipeline_parallel_size=1, enable_eplb=False, enable_dbo=False,
                        expert_placement_strategy="linear")  # fmt: skip
        parallel.update(changed)
        return _refusal(types.SimpleNamespace(parallel_config=types.SimpleNamespace(**parallel), lora_config=lora))

    assert refusal() is None
    for name, value in (
        ("tensor_parallel_size", 2), ("pipeline_parallel_size", 2), ("enable_eplb", True), ("enable_dbo", True),
        ("expert_placement_strategy", "round_robin"),
    ):  # fmt: skip
        assert name in refusal(**{name: value}) and str(value) in refusal(**{name: value})
    assert "enable_lora" in refusal(lora=object())


def versions_and_the_switch() -> None:
    """An unknown version turns it off, with a warning; it is an error where it was asked for."""
    own = current_platform.get_device_communicator_cls()
    said = []
    logging.getLogger("vllm.plugins.xep").addFilter(lambda record: said.append(record.getMessage()) or False)
    known, vllm.__version__ = vllm.__version__, "0.99.0"
    integration.register()
    assert current_platform.get_device_communicator_cls() == own and "0.99.0" in said[0], said
    os.environ["XEP_VLLM"] = "1"
    with pytest.raises(ImportError, match="vllm: version 0.99.0 is not known"):
        integration.register()
    vllm.__version__ = known
    os.environ["XEP_VLLM"] = "0"
    integration.register()
    assert current_platform.get_device_communicator_cls() == own
    del os.environ["XEP_VLLM"]
    integration.register()
    assert "xep" in current_platform.get_device_communicator_cls()
