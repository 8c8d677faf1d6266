#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# limit: 200, again: 2
# A group that grows while a member dies in its last word: nobody is left with a group that others have not.
set -u
failed=0
slow=${XEP_TEST_SLOW:-1}
export XEP_TIMEOUT=$((20 * slow))s XEP_LOG=error

# divided VICTIM VOID: so many of the survivors had got the group, at least; three of four end, two with a smaller one
divided() {
    local out
    out=$(timeout $((60 * slow)) ./xep_run -k -n 4 test/mp/divided "$1" 2>&1)
    [ "$(grep -c '^ended' <<<"$out")" -eq 3 ] && [ "$(grep -c '^left' <<<"$out")" -eq 2 ] &&
        [ "$(grep -c '^void' <<<"$out")" -ge "$2" ] && return
    echo "rank $1 dies in its last word, ${XEP_MAP:-mapped}, ${UCX_TLS:-all transports}:"
    echo "$out"
    failed=1
}

divided 1 1
[ -n "${XEP_TEST_BRIEF:-}" ] || divided 2 1
divided 0 2
export XEP_MAP=never UCX_TLS=tcp,self
[ -n "${XEP_TEST_BRIEF:-}" ] || divided 1 1
divided 2 1
divided 0 0 # the others may have noticed its death before its word
exit $failed
