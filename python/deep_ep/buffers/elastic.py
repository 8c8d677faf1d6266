# SPDX-License-Identifier: BSD-3-Clause
"""V2's ElasticBuffer, by the name that it has there."""

from ..elastic import ElasticBuffer
from ..handles import EPHandle

__all__ = ["EPHandle", "ElasticBuffer"]
