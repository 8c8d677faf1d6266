# SPDX-License-Identifier: BSD-3-Clause
"""Ranks that serve: without tokens of their own, they run their experts for the others in one call."""

from __future__ import annotations

from typing import Any, Callable, Iterable, NamedTuple, Optional

from . import _ext


class ServeCall(NamedTuple):
    """A dispatch, or a piece of one, that a rank serves: what its experts have to do.

    handle: ``handle.recv`` has the rows, ``handle.combine_input()`` is where outputs go; both are valid until the
        function returns, and nothing is begun with it.
    buffer: the Buffer. step: that it belongs to: so many have ended before.
    dispatch: which one of its buffer in the step, from 0: the layer, where each has one.
    """

    buffer: Any
    handle: _ext.Handle
    step: int
    dispatch: int


def serve(
    buffers: Iterable[_ext.Buffer],
    function: Callable[[ServeCall], Any],
    *,
    timeout: Optional[float] = None,
    torch: bool = False,
) -> None:
    """Takes part, without tokens, in every dispatch and combine that other ranks begin on these buffers, of one group
    and made with served=True, and runs the experts of this rank. Blocking; asleep while nobody calls.

    It returns between two steps: when Buffer.serve_stop() was called for one of the buffers, or a rank that works has
    ended its last step (step_end(last=True)). Then this rank may work, from the first operation of the next step on.

    function: called in this thread for each dispatch, or piece of one, and again for each further combine of it, also
        where there are no rows. Returns None, if it wrote to combine_input(), or expert outputs, [rows, H], which are
        copied there, or a pair of either and topk_weights, [rows, K] float32, that go back with them.
    timeout: seconds to wait for the end of the step once it was told to stop; None: the first buffer's.
    torch: rows are tensors, else numpy arrays.

    What function raises is raised here; operations of the other ranks end with FunctionError, which names this rank,
    and the buffers need reset(). It names the expert, too, if only one of this rank has rows, or if the exception has
    an attribute ``expert``, the number of a local expert (``error.expert = e``).

    Ctrl-C ends the group, as in other calls. DeadlineError: no step has ended in time; call it again, as this rank is
    still in the step. BusyError: a handle of this rank lives. PeerError: all ranks that worked in the step are out.
    MismatchError: ranks end a step behind different operations. UnsupportedError: a buffer without served=True.
    """
    _ext.serve(tuple(buffers), lambda *call: function(ServeCall(*call)), timeout, torch)


def step_end(buffers: Iterable[_ext.Buffer], *, last: bool = False) -> None:
    """Says that this rank's step ends behind the operations that it has begun on these buffers: those that are served
    together. Every rank that works calls it behind the same operations; ranks that serve do not. Local.

    last: ranks that serve return: nobody needs them after this step.
    """
    _ext.step_end(tuple(buffers), last)
