#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# limit: 400, again: 2
# Ranks die, stop and come back, one by one and three at once: the others go on, agree, and have the right sums; where
# all map one another, over sockets, over shared memory of UCX, and on several nodes.
set -u
failed=0
ranks=8
[ -z "${XEP_TEST_BRIEF:-}" ] || ranks=6

# play MODE SCENARIO SEED [OPTION...]: counts who survived, and who lived and left
play() {
    mode=$1 scenario=$2 seed=$3 n=$ranks
    shift 3
    case $scenario in
    anywhere) n=5 ;;
    taking) n=4 ;;
    esac
    out=$(XEP_TIMEOUT=20s timeout $((100 * ${XEP_TEST_SLOW:-1})) \
        ./xep_run -k "$@" -n "$n" ./test/mp/survivors "$mode" "$scenario" "$seed" 2>&1)
    survivors=$(printf '%s\n' "$out" | grep -c '^survived')
    left=$(printf '%s\n' "$out" | grep -c '^left')
}

wrong() {
    echo "$mode $scenario $seed $* of $n ranks: $survivors survived, $left left:"
    printf '%s\n' "$out"
    failed=1
}

# survive MODE SCENARIO SEED [OPTION...]
survive() {
    play "$@"
    shift 3
    case $scenario in
    none) gone=0 leave=0 ;;
    at-once | in-turns) gone=3 leave=0 ;;
    anywhere) gone=2 leave=0 ;;
    *) gone=1 leave=1 ;;
    esac
    [ "$survivors" -eq $((n - gone)) ] && [ "$left" -eq $leave ] || wrong "$@"
}

# pause_one MODE SEED: whether rank 3 comes back in time depends on the machine
pause_one() {
    play "$1" paused "$2"
    [ $((survivors + left)) -eq "$n" ] && [ "$left" -le 1 ] || wrong
}

# anywhere MODE: of which other seeds may be asked for
anywhere() {
    for seed in ${XEP_TEST_SEEDS:-$seeds}; do survive "$1" anywhere "$seed"; done
}

# all_scenarios MODE OPTION...
all_scenarios() {
    m=$1
    shift
    for each in 'none 0' 'at-once 1' 'in-turns 2' 'stopped 3' 'reading 8' 'asked 4'; do survive "$m" $each "$@"; done
}

# taking MODE: more than the network takes
taking() {
    XEP_INFLIGHT=64k UCX_TCP_SNDBUF=64k UCX_TCP_RCVBUF=64k survive "$1" taking 8
}

# Each scenario and each way once or twice: what is decided when does not depend on how bytes go.
in_brief() {
    seeds=11
    for mode in ll normal; do
        survive $mode at-once 1
        anywhere $mode
    done
    survive ll stopped 3
    survive normal reading 8
    survive normal asked 4
    survive normal stale 6
    pause_one ll 5
    survive ll stopped 3 -N 2
    survive normal at-once 1 -N 3
    export UCX_TLS=tcp,self
    survive ll at-once 1
    survive ll stale 7
    taking normal
    export XEP_MAP=never
    unset UCX_TLS
    survive ll in-turns 2
}

at_length() {
    seeds='11 22'
    for mode in ll normal; do
        all_scenarios $mode
        pause_one $mode 5
        survive $mode stale 6
        anywhere $mode
    done
    # a thread that makes progress, teams, and a second UCX
    survive normal at-once 1 -x XEP_PROGRESS=thread
    survive ll stopped 3 -x XEP_PROGRESS=thread
    survive ll at-once 1 -x XEP_THREADS=2
    if [ -n "${XEP_TEST_UCX_LIB:-}" ]; then
        for tls in shm,self tcp,self; do
            survive normal at-once 1 -x UCX_TLS=$tls -x "LD_LIBRARY_PATH=$XEP_TEST_UCX_LIB:${LD_LIBRARY_PATH:-}"
            survive ll stopped 3 -x UCX_TLS=$tls -x "LD_LIBRARY_PATH=$XEP_TEST_UCX_LIB:${LD_LIBRARY_PATH:-}"
        done
    fi
    all_scenarios ll -N 2
    survive normal at-once 1 -N 3
    survive normal in-turns 2 -N 2
    survive normal stopped 3 -N 3
    export UCX_TLS=tcp,self
    all_scenarios ll
    anywhere ll
    survive normal stale 7
    survive normal at-once 1
    survive normal in-turns 2
    taking ll
    taking normal
    anywhere normal # not where UCX has queues in shared memory: a rank killed writing there blocks them
    export XEP_MAP=never
    unset UCX_TLS
    survive ll in-turns 2
    survive ll stopped 3
    survive normal stopped 3
}

if [ -n "${XEP_TEST_BRIEF:-}" ]; then in_brief; else at_length; fi
exit $failed
