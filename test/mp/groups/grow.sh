#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# limit: 300, again: 2
# Groups that grow: processes that no launcher has started become ranks; however bytes travel.
. "${srcdir:-.}/test/rig/ranks.bash" || exit 99
program=./test/mp/groups/grow

# larger ENDED RANKS SCENARIO JOINER...: how many processes end well, of all; JOINER is HOW or HOW:SEED
larger() {
    local ended=$1 ranks=$2 scenario=$3 joiner pids=() count
    shift 3
    : >"$dir/members"
    : >"$dir/joiners"
    if [ "$ranks" -gt 0 ]; then
        XEP_TIMEOUT=${timeout:-$((30 * slow))s} timeout $((100 * slow)) \
            ./xep_run -k -n "$ranks" "$program" members "$scenario" "$dir/address" >"$dir/members" 2>&1 &
        pids+=($!)
    fi
    for joiner; do
        (
            exec 2>/dev/null # of those that die
            XEP_TIMEOUT=$((30 * slow))s timeout $((100 * slow)) \
                "$program" joiner "${joiner%:*}" "$dir/address" "${joiner#*:}" >>"$dir/joiners" 2>&1
            :
        ) &
        pids+=($!)
        case $joiner in dying:*) sleep 0.5 ;; esac
    done
    wait "${pids[@]}"
    count=$(cat "$dir/members" "$dir/joiners" | grep -c '^grown')
    [ "$count" -eq "$ended" ] && [ ! -e "$dir/address" ] && return
    echo "$scenario on $ranks ranks, ${XEP_MAP:-mapped}, ${UCX_TLS:-all transports}: $count of $ended ended well:"
    cat "$dir/members" "$dir/joiners"
    failed=1
    rm -f "$dir/address"
}

all() {
    local seed
    larger 4 3 one file
    larger 5 3 two file file
    larger 4 2 turns file file
    larger 3 3 replaced file
    for seed in ${XEP_TEST_SEEDS:-1}; do
        ASAN_OPTIONS=$whole_stacks larger 4 3 dying "dying:$seed" "dying:1$seed" "dying:2$seed" stays
    done
}

in_quick || all
larger 3 2 called called
larger 2 1 one file
larger 3 3 nobody
larger 3 3 wrong
larger 1 0 none late
timeout=10s larger 4 3 absent file
timeout=10s larger 3 2 again again
export XEP_MAP=never
in_brief || all # in brief, as over sockets; the quickest, there alone
export UCX_TLS=tcp,self
all
unset XEP_MAP
export UCX_TLS=sysv,posix,cma,self
larger 4 3 one file
exit $failed
