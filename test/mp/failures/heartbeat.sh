#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# limit: 400, again: 2
# Ranks of three hosts, of which one falls silent: the others are told its name by the heartbeat, minutes before their
# deadline, wherever they wait; a rank that only computes is not taken for silent.
. "${srcdir:-.}/test/rig/ranks.bash" || exit 99
program=$PWD/test/mp/failures/heartbeat
if unshare --ipc true 2>/dev/null; then apart='unshare --ipc'
elif unshare --user --map-root-user --ipc true 2>/dev/null; then apart='unshare --user --map-root-user --ipc'
else echo 'skipped: no new namespaces here' && exit 77; fi

# run STATUS WORD COUNT WHERE [VARIABLE=VALUE...]
run() {
    on_ranks 3 XEP_TIMEOUT=600s XEP_HEARTBEAT=1s "${@:5}" -k $apart "$program" "$4"
    [ $status -eq "$1" ] && say "$2" "$3" || wrong "${*:4}: not status $1, or not $3 of \"$2\""
}
for where in barrier dispatch tests ends; do run 137 survived 2 $where; done
run 0 well 3 computes
# on one host, too, where the kernel is not to be asked
apart= run 137 survived 2 dispatch XEP_LIVENESS=heartbeat
# what makes the difference
run 137 survived 2 deadline XEP_HEARTBEAT=inf XEP_TIMEOUT=10s
# ranks must agree, or one would wait for beats that never come
on_ranks 2 -k sh -c 'XEP_HEARTBEAT=$((PMIX_RANK + 1))s exec "$0" computes' "$program"
grep -q 'rank 1 and rank 0 disagree on XEP_HEARTBEAT (ms): 2000, 1000' "$dir/out" || wrong 'different heartbeats'
exit $failed
