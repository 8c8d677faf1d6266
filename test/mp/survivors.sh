#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# limit: 300, again: 2
# Ranks die, stop and come back, one by one and three at once: the others go on, agree, and have the right sums.
set -u
program=./test/mp/survivors
failed=0

# survive RANKS SURVIVORS LEFT SCENARIO SEED
survive() {
    out=$(XEP_TIMEOUT=20s timeout $((100 * ${XEP_TEST_SLOW:-1})) ./xep_run -k -n "$1" "$program" "$4" "$5" 2>&1)
    survivors=$(printf '%s\n' "$out" | grep -c '^survived')
    left=$(printf '%s\n' "$out" | grep -c '^left')
    [ "$survivors" -eq "$2" ] && [ "$left" -eq "$3" ] && return
    echo "$4 $5: $survivors of $2 survived, $left of $3 left:"
    printf '%s\n' "$out"
    failed=1
}

survive 8 8 0 none 0
survive 8 5 0 at-once 1
survive 8 5 0 in-turns 2
survive 8 7 1 stopped 3
survive 8 7 1 asked 4
for seed in ${XEP_TEST_SEEDS:-11 22 33 44}; do survive 5 3 0 anywhere "$seed"; done
exit $failed
