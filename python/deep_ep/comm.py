# SPDX-License-Identifier: BSD-3-Clause
"""What V2.5 has by this name, and V2 in utils.comm."""

from .utils.comm import *  # noqa: F403
