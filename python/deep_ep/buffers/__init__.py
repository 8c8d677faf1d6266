# SPDX-License-Identifier: BSD-3-Clause
"""The buffers, each in the module that DeepEP has it in from V2 on."""
