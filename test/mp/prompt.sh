#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# limit: 120, again: 2
# Where the others go on without a rank that has died or stopped, the first operation ends in time and the next is as
# fast as those before: where all map one another, and over sockets. On a busy machine times are what others leave.
set -u
failed=0

# prompt MODE killed|stopped
prompt() {
    out=$(timeout $((50 * ${XEP_TEST_SLOW:-1})) ./xep_run -k -n 4 ./test/mp/prompt "$@" 2>&1)
    if [ "$(printf '%s\n' "$out" | grep -c '^survived')" -eq 3 ]; then
        echo "$* ${UCX_TLS:-}:"
        printf '%s\n' "$out" | grep before
        return
    fi
    echo "$* ${UCX_TLS:-}: 3 of 4 did not survive, or not in time:"
    printf '%s\n' "$out"
    failed=1
}

prompt normal killed
prompt ll stopped
if [ -z "${XEP_TEST_BRIEF:-}" ]; then
    prompt normal stopped
    prompt ll killed
    UCX_TLS=tcp,self prompt ll stopped
fi
UCX_TLS=tcp,self prompt normal killed
exit $failed
