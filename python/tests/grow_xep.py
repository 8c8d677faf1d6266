# SPDX-License-Identifier: BSD-3-Clause
"""A process of test_grow.py: a member of a group that grows, or a joiner. Prints "I grew" at its end."""

from __future__ import annotations

import os
import sys

from masks_xep import Rounds, make_buffer

import xep

PATH = sys.argv[2]


def publish(address: bytes | None) -> None:
    if address is None:
        os.unlink(PATH)
        return
    with open(PATH + ".new", "wb") as file:
        file.write(address)
    os.rename(PATH + ".new", PATH)


def lookup() -> bytes | None:
    if not os.path.exists(PATH):
        return None
    with open(PATH, "rb") as file:
        return file.read()


def play(group: xep.Group, buffer: xep.Buffer) -> None:
    rounds = Rounds(group, buffer)
    for step in range(4):
        rounds.combine(step, rounds.dispatch(step, set()), set())


def refuse(error: type[BaseException], sentence: str, call, *arguments, **options) -> None:
    try:
        call(*arguments, **options)
    except error as raised:
        assert sentence in str(raised), raised
    else:
        raise AssertionError(f"{call} did not raise {error}")


def go_wrong(group: xep.Group) -> None:
    """All members have the group as it was."""

    def fail(_address: bytes | None) -> None:
        raise ZeroDivisionError("no store")

    refuse(TimeoutError, "0 of 2 joiners came in 200 ms", group.grow, PATH + ".nobody", joiners=2, timeout=0.2)
    refuse(ZeroDivisionError if group.rank == 0 else xep.BootError, "", group.grow, publish=fail)
    refuse(xep.XepError, "args.path and args.publish are both given", group.grow, PATH, publish=fail)
    refuse(ValueError, "joiners: expected an integer from 0 to 1024, got -1", group.grow, PATH, joiners=-1)
    refuse(TypeError, "buffer: expected a Buffer or None, got 7", group.follow, 7)


def be_member(called: bool) -> None:
    group = xep.Group()
    buffer = make_buffer(group, None)
    go_wrong(group)
    play(group, buffer)
    wider = group.grow(publish=publish) if called else group.grow(PATH)
    assert (wider.rank, wider.nranks, wider.boot) == (group.rank, group.nranks + 1, "grow")
    follower = wider.follow(buffer)
    play(group, buffer)
    group.close()
    play(wider, follower)
    wider.close()


def be_joiner(called: bool) -> None:
    refuse(TimeoutError, "there is no address of a group", xep.Group.join, PATH + ".none", timeout=0.2)
    group = xep.Group.join(lookup=lookup) if called else xep.Group.join(PATH)
    assert group.rank == group.nranks - 1 and group.origins is None
    buffer = group.follow()
    assert (buffer.dtype, buffer.info().mode, buffer.slots) == (xep.Dtype.FP32, "ll", 2)
    play(group, buffer)
    group.close()


{"member": be_member, "joiner": be_joiner}[sys.argv[1]](sys.argv[3] == "called")
print("I grew", flush=True)
