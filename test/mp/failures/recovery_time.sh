#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# limit: 120
# Where the others go on without a rank that has died or stopped, the first operation ends in time and no other waits
# for it: where all map one another, and over sockets.
. "${srcdir:-.}/test/rig/ranks.bash" || exit 99

# recover MODE killed|stopped
recover() {
    on_ranks 4 -k ./test/mp/failures/recovery_time "$@"
    say survived 3 || wrong "$* ${UCX_TLS:-}: 3 of 4 did not survive, or not in time"
    echo "$* ${UCX_TLS:-}:"
    grep before "$dir/out"
}

recover normal killed
recover ll stopped
if ! in_brief; then
    recover normal stopped
    recover ll killed
    UCX_TLS=tcp,self recover ll stopped
fi
in_quick || UCX_TLS=tcp,self recover normal killed
exit $failed
