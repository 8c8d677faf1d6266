#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# limit: 400, again: 2
# Ranks die, stop and come back, one by one and three at once: the others go on, agree, and have the right sums; where
# all map one another, over sockets, over shared memory of UCX, and on several nodes.
set -u
program=./test/mp/survivors
failed=0

# survive MODE RANKS SURVIVORS LEFT SCENARIO SEED [OPTION...]
survive() {
    mode=$1 n=$2 expected=$3 expected_left=$4 scenario=$5 seed=$6
    shift 6
    out=$(XEP_TIMEOUT=20s timeout $((100 * ${XEP_TEST_SLOW:-1})) \
        ./xep_run -k "$@" -n "$n" "$program" "$mode" "$scenario" "$seed" 2>&1)
    survivors=$(printf '%s\n' "$out" | grep -c '^survived')
    left=$(printf '%s\n' "$out" | grep -c '^left')
    [ "$survivors" -eq "$expected" ] && [ "$left" -eq "$expected_left" ] && return
    echo "$mode $scenario $seed $*: $survivors of $expected survived, $left of $expected_left left:"
    printf '%s\n' "$out"
    failed=1
}

# all_scenarios MODE OPTION...
all_scenarios() {
    m=$1
    shift
    survive "$m" 8 5 0 at-once 1 "$@"
    if [ -z "${XEP_TEST_BRIEF:-}" ]; then
        survive "$m" 8 8 0 none 0 "$@"
        survive "$m" 8 5 0 in-turns 2 "$@"
    fi
    survive "$m" 8 7 1 stopped 3 "$@"
    if [ -z "${XEP_TEST_BRIEF:-}" ] || [ -z "${elsewhere:-}" ]; then
        survive "$m" 8 7 1 reading 8 "$@"
        survive "$m" 8 7 1 asked 4 "$@"
    fi
}

seeds='11 22'
[ -z "${XEP_TEST_BRIEF:-}" ] || seeds=11
# anywhere MODE SEEDS: of which others may be asked for
anywhere() {
    for seed in ${XEP_TEST_SEEDS:-$2}; do survive "$1" 5 3 0 anywhere "$seed"; done
}

# pause_one MODE SEED: whether rank 3 comes back in time depends on the machine
pause_one() {
    out=$(XEP_TIMEOUT=20s timeout $((100 * ${XEP_TEST_SLOW:-1})) ./xep_run -k -n 8 "$program" "$1" paused "$2" 2>&1)
    survivors=$(printf '%s\n' "$out" | grep -c '^survived')
    left=$(printf '%s\n' "$out" | grep -c '^left')
    [ $((survivors + left)) -eq 8 ] && [ "$left" -le 1 ] && return
    echo "$1 paused $2: $survivors survived, $left left:"
    printf '%s\n' "$out"
    failed=1
}

for each in ll normal; do
    all_scenarios $each
    pause_one $each 5
    survive $each 8 7 1 stale 6
    anywhere $each "$seeds"
done
# a thread that makes progress, teams, and a second UCX
if [ -z "${XEP_TEST_BRIEF:-}" ]; then
    survive normal 8 5 0 at-once 1 -x XEP_PROGRESS=thread
    survive ll 8 7 1 stopped 3 -x XEP_PROGRESS=thread
    survive ll 8 5 0 at-once 1 -x XEP_THREADS=2
    if [ -n "${XEP_TEST_UCX_LIB:-}" ]; then
        for tls in shm,self tcp,self; do
            survive normal 8 5 0 at-once 1 -x UCX_TLS=$tls -x "LD_LIBRARY_PATH=$XEP_TEST_UCX_LIB:${LD_LIBRARY_PATH:-}"
            survive ll 8 7 1 stopped 3 -x UCX_TLS=$tls -x "LD_LIBRARY_PATH=$XEP_TEST_UCX_LIB:${LD_LIBRARY_PATH:-}"
        done
    fi
fi
elsewhere=yes # bytes go another way now: in short, what is decided when is as before
all_scenarios ll -N 2
survive normal 8 5 0 at-once 1 -N 3
if [ -z "${XEP_TEST_BRIEF:-}" ]; then
    survive normal 8 5 0 in-turns 2 -N 2
    survive normal 8 7 1 stopped 3 -N 3
fi
(
    export UCX_TLS=tcp,self
    all_scenarios ll
    anywhere ll "$seeds"
    survive normal 8 7 1 stale 7
    survive normal 8 5 0 at-once 1
    [ -n "${XEP_TEST_BRIEF:-}" ] || survive normal 8 5 0 in-turns 2
    for each in ll normal; do
        XEP_INFLIGHT=64k UCX_TCP_SNDBUF=64k UCX_TCP_RCVBUF=64k survive $each 4 3 1 taking 8
    done
    anywhere normal "$seeds" # not where UCX has queues in shared memory: a rank killed writing there blocks them
    exit $failed
) || failed=1
export XEP_MAP=never
survive ll 8 5 0 in-turns 2
[ -n "${XEP_TEST_BRIEF:-}" ] || survive ll 8 7 1 stopped 3
survive normal 8 7 1 stopped 3
exit $failed
