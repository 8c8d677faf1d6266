#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# limit: 200, again: 2
# How a rank ends that serves: told to, by a failing function, by ranks that die, stop or disagree at the end of a step.
. "${srcdir:-.}/test/rig/ranks.bash" || exit 99

# ends FINE MODE SCENARIO [mask] [-- VAR=VALUE...]: so many of three ranks are fine
ends() {
    local fine=$1 arguments=()
    shift
    while [ $# -gt 0 ] && [ "$1" != -- ]; do
        arguments+=("$1")
        shift
    done
    on_ranks 3 XEP_TIMEOUT=20s "${@:2}" -k ./test/mp/failures/serving_ends "${arguments[@]}"
    say 'fine' "$fine" || wrong "${arguments[*]} ${*:2}"
}

over_tcp='UCX_TLS=tcp,self'
ends 3 normal idle
ends 3 ll idle -- $over_tcp
ends 3 ll many
ends 3 normal stops
ends 3 ll stops -- $over_tcp
ends 3 normal wrong
ends 3 ll fails
ends 3 normal fails -- $over_tcp
ends 3 ll fails mask
ends 3 normal stopped
ends 3 ll stopped mask -- $over_tcp
ends 3 ll forgets
ends 3 normal forgets -- $over_tcp
ends 3 normal again
ends 3 ll partly
ends 3 ll layers
ends 3 ll late
ends 3 normal late mask -- $over_tcp
ends 3 ll disagree
ends 2 normal worker mask
ends 2 ll worker mask -- $over_tcp
ends 2 normal announcer mask -- $over_tcp
ends 2 ll boundary mask
ends 2 normal boundary mask -- $over_tcp
ends 1 ll workers mask
ends 1 normal workers
ends 1 ll abandoned mask
ends 3 normal asked -- XEP_EXPLAIN=sigusr1
ends 2 ll server mask
ends 2 normal server -- $over_tcp
exit $failed
