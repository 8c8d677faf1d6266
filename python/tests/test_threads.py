# SPDX-License-Identifier: BSD-3-Clause
"""Threads of a rank: one waits in a call of a buffer while another one ends a handle or a request of it."""

from __future__ import annotations

import pytest
from programs import SLOW, run

START = """
    import threading
    import numpy as np, xep

    x = np.ones((4, 16), np.float32)

    def until_in_a_call(handle):
        '''Another thread is.'''
        while True:
            try:
                handle.gather()
            except xep.InvalidError as error:
                assert "another thread is in a call" in str(error)
                return

    def when_no_other_is(call):
        while True:
            try:
                return call()
            except xep.InvalidError as error:
                assert "another thread is in a call" in str(error)

    group = xep.Group()
    idx = np.arange(8).reshape(4, 2) % (2 * group.nranks)
    buffer = group.buffer(2 * group.nranks, 2, 16, 4, dtype="float32", combine_dtype="float32", slots=3)
    first = buffer.dispatch(x, idx)
    group.barrier()
"""

RELEASE = """
    said = []
    xep.set_log(lambda level, text: said.append(text))
    if group.rank == 1:

        def late():
            try:
                when_no_other_is(lambda: buffer.dispatch(x, idx, timeout=1))
            except xep.DeadlineError:
                said.append("late")

        thread = threading.Thread(target=late)
        thread.start()
        until_in_a_call(first)
        first.release()
        thread.join()
        assert len(said) > 1 and "late" in said
    group.barrier()
    buffer.reset()
    assert buffer.slots_held() == 0
    buffer.close()
    group.close()
"""

REFUSED = """
    import pytest

    with xep.Group() as second:
        results = []
        if group.rank == 1:
            request = buffer.dispatch_async(x, idx)
            thread = threading.Thread(target=lambda: results.append(when_no_other_is(request.wait)))
            thread.start()
            until_in_a_call(first)
            waits = request.wait, request.wait_counts, request.result.park
            for call in (*waits, lambda: buffer.dispatch(x, idx), buffer.reset):
                with pytest.raises(xep.InvalidError, match="another thread is in a call"):
                    call()
            assert not request.done() and buffer.slots_held() == 2 and first.rows > 0
            second.barrier()
            thread.join()
            assert results == [request.result] and request.done() and request.wait() is request.result
            handle = request.result
        else:
            second.barrier()
            handle = buffer.dispatch(x, idx)
        assert (handle.combine(handle.recv.x) > 0).all()
        handle.release()
    first.release()
    buffer.close()
    group.close()
"""


@pytest.mark.parametrize("rest", [RELEASE, REFUSED], ids=["release", "refused"])
def test_another_thread_is_in_a_call(rest):
    """release: it says something, which needs the GIL, while the other one waits for it. refused: a request that it
    waits for goes on, and a reset that is refused ends nothing."""
    run(START + rest, "timeout", str(100 * SLOW), "xep_run", "-n", "2", XEP_TIMEOUT="60s")
