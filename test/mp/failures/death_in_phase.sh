#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# limit: 120
# A rank killed in each phase: the others get XEP_ERR_PEER with its name within seconds, and leave.
. "${srcdir:-.}/test/rig/ranks.bash" || exit 99
for phase in dispatch test combine destroy; do
    on_ranks 3 "XEP_TIMEOUT=20s" -k ./test/mp/failures/death_in_phase $phase
    say survived 2 && [ $status -eq 137 ] || wrong "killed at $phase: not both others went on"
done
for map in auto never; do
    on_ranks 3 XEP_TIMEOUT=20s XEP_MAP=$map -k ./test/mp/ops/owned_weights.mp dead
    say survived 2 || wrong "an owner of weights dies, XEP_MAP=$map"
done
exit $failed
