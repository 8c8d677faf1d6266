#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# limit: 400, again: 2
# Ranks die, stop and come back, one by one and three at once: the others go on, agree, and have the right sums; where
# all map one another, over sockets, over shared memory of UCX, and on several nodes.
. "${srcdir:-.}/test/rig/ranks.bash" || exit 99
ranks=8
! in_brief || ranks=6

# survive MODE SCENARIO SEED [OPTION...]: as many survive, or live and leave, as there have to
survive() {
    local n=$ranks gone=1 left=1
    case $2 in
    none) gone=0 left=0 ;;
    at-once | in-turns) gone=3 left=0 ;;
    anywhere) n=5 gone=2 left=0 ;;
    taking) n=4 ;;
    esac
    on_ranks $n XEP_TIMEOUT=10m -k "${@:4}" ./test/mp/failures/survivors "${@:1:3}"
    say survived $((n - gone)) && say left $left || wrong "$*: of $n ranks $((n - gone)) survive, $left leave"
}

# served SCENARIO MODE RULE SEED [OPTION...]: experts have several instances, and dispatches are balanced by the rule
served() {
    local n=6 gone=2 left=0
    [ "$1" = killed ] || n=4 gone=1 left=1
    on_ranks $n XEP_TIMEOUT=10m -k "${@:5}" ./test/mp/ops/balanced.mp "${@:1:4}"
    say survived $((n - gone)) && say left $left || wrong "balanced $*: of $n ranks $((n - gone)) survive, $left leave"
}

# pause_one MODE SEED: whether rank 3 comes back in time depends on the machine
pause_one() {
    on_ranks "$ranks" XEP_TIMEOUT=10m -k ./test/mp/failures/survivors "$1" paused "$2"
    say survived "$ranks" || { say survived $((ranks - 1)) && say left 1; } || wrong "$1 paused $2"
}

# anywhere MODE: of which other seeds may be asked for
anywhere() {
    for seed in ${XEP_TEST_SEEDS:-$seeds}; do survive "$1" anywhere "$seed"; done
}

# all_scenarios MODE OPTION...
all_scenarios() {
    local each
    for each in 'none 0' 'at-once 1' 'in-turns 2' 'stopped 3' 'reading 8' 'asked 4'; do
        survive "$1" $each "${@:2}"
    done
}

# taking MODE: more than the network takes
taking() {
    XEP_INFLIGHT=64k UCX_TCP_SNDBUF=64k UCX_TCP_RCVBUF=64k survive "$1" taking 8
}

# Each scenario and each way once or twice: what is decided when does not depend on how bytes go. The quickest: each
# way once.
not_quick() { in_quick || "$@"; }
some() {
    seeds=11
    for mode in ll normal; do
        survive $mode at-once 1
        anywhere $mode
    done
    survive ll stopped 3
    survive normal reading 8
    survive normal asked 4
    survive normal stale 6
    not_quick pause_one ll 5
    served killed ll even 5
    served stopped normal replicas 3
    not_quick survive ll stopped 3 -N 2
    survive normal at-once 1 -N 3
    export UCX_TLS=tcp,self
    survive ll at-once 1
    not_quick survive ll stale 7
    not_quick taking normal
    export XEP_MAP=never
    unset UCX_TLS
    survive ll in-turns 2
}

everything() {
    seeds='11 22'
    for mode in ll normal; do
        all_scenarios $mode
        pause_one $mode 5
        survive $mode stale 6
        anywhere $mode
    done
    for mode in ll normal; do
        for rule in none least even replicas plan; do served killed $mode $rule 5; done
        served stopped $mode least 3
        served stopped $mode plan 3 -x XEP_MAP=never
        served killed $mode even 8 -x XEP_MAP=never
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
    ranks=6 # what eight ranks add is seen above
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

if in_brief; then some; else everything; fi
exit $failed
