#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# limit: 400, again: 2
# Ranks of three hosts, of which one falls silent: the others are told its name by the heartbeat, minutes before their
# deadline, wherever they wait; a rank that only computes is not taken for silent.
set -u
program=$PWD/test/mp/heartbeat
failed=0
if unshare --ipc true 2>/dev/null; then apart='unshare --ipc'
elif unshare --user --map-root-user --ipc true 2>/dev/null; then apart='unshare --user --map-root-user --ipc'
else echo 'skipped: no new namespaces here' && exit 77; fi

# run EXPECTED_STATUS LINE COUNT WHERE [VARIABLE=VALUE...]
run() {
    local status=$1 line=$2 count=$3 where=$4 out got
    shift 4
    out=$(env XEP_TIMEOUT=600s XEP_HEARTBEAT=400ms "$@" timeout $((100 * ${XEP_TEST_SLOW:-1})) \
        ./xep_run -k -n 3 $apart "$program" "$where" 2>&1)
    got=$?
    if [ $got -ne "$status" ] || [ "$(grep -c "$line" <<<"$out")" -ne "$count" ]; then
        echo "$where $*: status $got (expected $status), not $count of \"$line\" in:"
        echo "$out"
        failed=1
    fi
}
for where in barrier dispatch tests ends; do run 137 '^survived$' 2 $where; done
run 0 '^well$' 3 computes
# on one host, too, where the kernel is not to be asked
apart= run 137 '^survived$' 2 dispatch XEP_LIVENESS=heartbeat
# what makes the difference
run 137 '^survived$' 2 deadline XEP_HEARTBEAT=inf XEP_TIMEOUT=4s
# ranks must agree, or one would wait for beats that never come
out=$(timeout $((60 * ${XEP_TEST_SLOW:-1})) ./xep_run -k -n 2 \
    sh -c 'XEP_HEARTBEAT=$((PMIX_RANK + 1))s exec "$0" computes' "$program" 2>&1)
if ! grep -q 'rank 1 and rank 0 disagree on XEP_HEARTBEAT (ms): 2000, 1000' <<<"$out"; then
    echo "ranks with different heartbeats: $out"
    failed=1
fi
exit $failed
