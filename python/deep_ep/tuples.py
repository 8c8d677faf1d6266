# SPDX-License-Identifier: BSD-3-Clause
"""Handles as the tuples that they are in DeepEP, without the time that making their tensors takes.

Programs hand a handle on as it is, and now and then look into it, add to it, copy it or send it through a tree of
arguments. Its items are made when they are looked at.
"""

from __future__ import annotations

import copy
from typing import Any, Iterator, Protocol

from torch.utils import _pytree

from ._check import calls_of


class Core(Protocol):
    """What a tuple has its items from."""

    def __len__(self) -> int: ...

    def item(self, index: int) -> Any:
        """The same object every time."""


class HandleTuple(tuple):
    """core: what combine and a cached dispatch work with. The tuple itself is empty: torch.compile guards the items
    that are there, and these it passes on unseen.

    What is made of this tuple (by +, a slice, pickle, deepcopy) is a plain one: its items are all that is known of it.
    """

    core: Any

    @staticmethod
    def over(core: Core) -> "HandleTuple":
        made: HandleTuple = tuple.__new__(HandleTuple)
        made.core = core
        return made

    def __new__(cls, items: Any = ()) -> Any:
        """As of a tuple: what takes a tree apart builds it again by its type."""
        return tuple(items)

    def __len__(self) -> int:
        return len(self.core)

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[Any]:
        return map(self.core.item, range(len(self)))

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return tuple(self.core.item(i) for i in range(len(self))[index])
        return self.core.item(range(len(self))[index])

    def __add__(self, other: Any) -> tuple:
        return tuple(self) + tuple(other) if isinstance(other, tuple) else NotImplemented

    def __radd__(self, other: Any) -> tuple:
        return other + tuple(self) if isinstance(other, tuple) else NotImplemented

    def __mul__(self, times: Any) -> tuple:
        return tuple(self) * times

    __rmul__ = __mul__

    def __eq__(self, other: Any) -> Any:
        return self is other or tuple(self) == (tuple(other) if isinstance(other, tuple) else other)

    def __ne__(self, other: Any) -> Any:
        return not self == other

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __contains__(self, item: Any) -> bool:
        return item in tuple(self)

    def index(self, *arguments: Any) -> int:
        return tuple(self).index(*arguments)

    def count(self, item: Any) -> int:
        return tuple(self).count(item)

    def __repr__(self) -> str:
        return repr(tuple(self))

    def __reduce__(self) -> Any:
        return tuple, (tuple(self),)

    __reduce_ex__: Any = lambda self, _protocol: self.__reduce__()  # noqa: E731

    def __copy__(self) -> "HandleTuple":
        return self

    def __deepcopy__(self, memo: Any) -> tuple:
        return copy.deepcopy(tuple(self), memo)


class _Whole:
    """The tuple that a tree was taken apart of. Trees of handles are alike, whichever handles they are."""

    def __init__(self, handle: HandleTuple) -> None:
        self.handle = handle

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, _Whole) and len(other.handle) == len(self.handle)

    def __hash__(self) -> int:
        return hash(len(self.handle))


def _flatten(handle: HandleTuple) -> tuple[list[Any], _Whole]:
    return list(handle), _Whole(handle)


def _unflatten(items: Any, whole: _Whole) -> tuple:
    """The same handle, if none of its items was replaced."""
    items = tuple(items)
    same = len(items) == len(whole.handle) and all(new is old for new, old in zip(items, whole.handle))
    return whole.handle if same else items


calls_of(HandleTuple)
_pytree.register_pytree_node(HandleTuple, _flatten, _unflatten)
