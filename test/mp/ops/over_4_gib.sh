#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# limit: 600
# More than 4 GiB of rows in one rank: stored by ranks that map one another, and by each way of the wire. Which
# transport that has under it changes none of our sizes, and over sockets it took longer than all others together.
# The test knows how much it touches: half of what the heaps have room for.
. "${srcdir:-.}/test/rig/ranks.bash" || exit 99

! in_quick || { echo 'skipped: the whole check has it'; exit 77; }

# large [VAR=VALUE...]
large() {
    on_ranks 2 "XEP_TIMEOUT=$((110 * slow))s" XEP_ROOM=rank "$@" ./test/mp/ops/over_4_gib
    [ $status -ne 77 ] || { cat "$dir/out"; exit $((failed ? failed : 77)); }
    [ $status -eq 0 ] || wrong "large with $*"
}

large
! in_brief || exit $failed
for put in rma am; do large XEP_MAP=never XEP_PUT=$put; done
exit $failed
