# SPDX-License-Identifier: BSD-3-Clause
"""Frameworks that run on xep. Nothing here is imported unless asked for; each module says what it needs.

    import xep.integrations.transformers     # DistributedConfig(ep_implementation="xep")
    import xep.integrations.flashinfer       # flashinfer.moe_ep: SplitConfig(comm="xep")
    xep.integrations.vllm                     # vLLM loads it by itself where xep is installed; XEP_VLLM=0: not
    xep.integrations.sglang                   # SGLang likewise; XEP_SGLANG=0: not
"""
