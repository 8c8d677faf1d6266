#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# limit: 600, again: 2
# Groups that shrink: ranks die in operations, while buffers are made and while the group shrinks; however bytes travel.
. "${srcdir:-.}/test/rig/ranks.bash" || exit 99

# shrink SURVIVORS RANKS SCENARIO SEED [KILLED]: in the environment of this shell
shrink() {
    on_ranks "$2" "XEP_TIMEOUT=$((30 * slow))s" -k ./test/mp/groups/shrink "${@:3}"
    say survived "$1" ||
        wrong "${*:3} on $2 ranks, ${XEP_MAP:-mapped}, ${UCX_TLS:-all transports}: not $1 survived"
}

seeds='1 2 3'
! in_brief || seeds=1
all() {
    local seed
    shrink 4 4 none 0
    shrink 3 4 early 0
    shrink 4 4 late 0
    shrink 2 4 few 0
    shrink 1 3 alone 0
    for seed in ${XEP_TEST_SEEDS:-$seeds}; do ASAN_OPTIONS=$whole_stacks shrink 2 4 killed "$seed" 2; done
}

all
ASAN_OPTIONS=$whole_stacks shrink 5 8 killed 4 3
export XEP_MAP=never
in_brief || all # in brief, as over sockets
export UCX_TLS=tcp,self
all
exit $failed
