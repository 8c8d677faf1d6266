# SPDX-License-Identifier: BSD-3-Clause
"""One rank of a run of pytest: rank 0 writes as pytest does, the others only when something failed.

xep_run -n 4 python run_ranks.py ranks_xep.py
"""

from __future__ import annotations

import contextlib
import io
import os
import sys

import pytest


def main() -> int:
    rank = int(os.environ.get("PMIX_RANK", os.environ.get("RANK", "0")))
    arguments = ["-q", "-rs", "-p", "no:cacheprovider", *sys.argv[1:]]
    if rank == 0:
        return pytest.main(arguments)
    written = io.StringIO()
    with contextlib.redirect_stdout(written):
        status = pytest.main(arguments)
    if status not in (0, 5):  # 5: nothing was collected
        print(f"rank {rank}:\n{written.getvalue()}", file=sys.stderr)
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
