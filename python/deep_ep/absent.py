# SPDX-License-Identifier: BSD-3-Clause
"""What ElasticBuffer has beside dispatch and combine, and has not here."""

from __future__ import annotations

from typing import Any, NoReturn


def _absent(name: str, what: str) -> Any:
    def call(*_arguments: Any, **_options: Any) -> NoReturn:
        raise NotImplementedError(f"{name}: {what} is not available on CPU")

    call.__name__ = name
    call.__doc__ = "Not available."
    return staticmethod(call)


_ENGRAM, _PIPELINE, _GATHER = "the remote table of engram", "pipeline send and receive", "all-gather in sessions"


class Absent:
    """Each raises NotImplementedError."""

    engram_write = _absent("engram_write", _ENGRAM)
    engram_fetch = _absent("engram_fetch", _ENGRAM)
    get_engram_storage_size_hint = _absent("get_engram_storage_size_hint", _ENGRAM)
    pp_set_config = _absent("pp_set_config", _PIPELINE)
    pp_send = _absent("pp_send", _PIPELINE)
    pp_recv = _absent("pp_recv", _PIPELINE)
    get_pp_buffer_size_hint = _absent("get_pp_buffer_size_hint", _PIPELINE)
    agrs_set_config = _absent("agrs_set_config", _GATHER)
    agrs_get_inplace_tensor = _absent("agrs_get_inplace_tensor", _GATHER)
    agrs_new_session = _absent("agrs_new_session", _GATHER)
    create_agrs_session = _absent("create_agrs_session", _GATHER)
    destroy_agrs_session = _absent("destroy_agrs_session", _GATHER)
    all_gather = _absent("all_gather", _GATHER)
    get_agrs_num_max_session_bytes = _absent("get_agrs_num_max_session_bytes", _GATHER)
    get_agrs_buffer_size_hint = _absent("get_agrs_buffer_size_hint", _GATHER)
