#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# limit: 200, again: 2
# A group that grows while a member dies in its last word: nobody is left with a group that others have not.
. "${srcdir:-.}/test/rig/ranks.bash" || exit 99
export XEP_LOG=error

# grow VICTIM VOID: so many of the survivors had got the group, at least; three of four end, two with a smaller one
grow() {
    rm -f "$dir"/member.*
    on_ranks 4 "XEP_TIMEOUT=$((20 * slow))s" -k test/mp/groups/grow_last_word "$1" "$dir"
    say ended 3 && say left 2 && [ "$(grep -c '^void' "$dir/out")" -ge "$2" ] ||
        wrong "rank $1 dies in its last word, ${XEP_MAP:-mapped}, ${UCX_TLS:-all transports}"
}

grow 1 1
in_brief || grow 2 1
grow 0 2
export XEP_MAP=never UCX_TLS=tcp,self
in_brief || grow 1 1
grow 2 1
grow 0 0 # the others may have noticed its death before its word
exit $failed
