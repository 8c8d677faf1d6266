#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# limit: 600, again: 2
# Groups that shrink: ranks die in operations, while buffers are made and while the group shrinks; however bytes travel.
set -u
program=./test/mp/smaller
failed=0

# smaller SURVIVORS RANKS SCENARIO SEED [KILLED]: in the environment of this shell
smaller() {
    local out survivors
    out=$(XEP_TIMEOUT=$((30 * ${XEP_TEST_SLOW:-1}))s timeout $((120 * ${XEP_TEST_SLOW:-1})) \
        ./xep_run -k -n "$2" "$program" "${@:3}" 2>&1)
    survivors=$(printf '%s\n' "$out" | grep -c '^survived')
    [ "$survivors" -eq "$1" ] && return
    echo "${*:3} on $2 ranks, ${XEP_MAP:-mapped}, ${UCX_TLS:-all transports}: $survivors of $1 survived:"
    printf '%s\n' "$out"
    failed=1
}

seeds='1 2 3'
[ -z "${XEP_TEST_BRIEF:-}" ] || seeds=1
all() {
    local seed
    smaller 4 4 none 0
    smaller 3 4 early 0
    smaller 4 4 late 0
    smaller 2 4 few 0
    smaller 1 3 alone 0
    for seed in ${XEP_TEST_SEEDS:-$seeds}; do smaller 2 4 killed "$seed" 2; done
}

all
smaller 5 8 killed 4 3
export XEP_MAP=never
[ -n "${XEP_TEST_BRIEF:-}" ] || all # in brief, as over sockets
export UCX_TLS=tcp,self
all
exit $failed
