#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# limit: 120
# A rank killed in each phase: the others get XEP_ERR_PEER with its name within seconds, and leave.
set -u
program=./test/mp/victim
failed=0
for phase in dispatch test combine destroy; do
    out=$(XEP_TIMEOUT=20s timeout $((60 * ${XEP_TEST_SLOW:-1})) ./xep_run -k -n 3 "$program" $phase 2>&1)
    status=$?
    survivors=$(printf '%s\n' "$out" | grep -c '^survived')
    if [ "$survivors" -ne 2 ] || [ $status -ne 137 ]; then
        echo "killed at $phase: $survivors of 2 others went on, status $status:"
        printf '%s\n' "$out"
        failed=1
    fi
done
exit $failed
