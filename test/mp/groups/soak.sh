#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# limit: 300, again: 2
# Seconds of contrib/soak: ranks are killed, and others join in their place.
set -u
[ "${XEP_TEST_BRIEF:-}" != quick ] || [ -n "${ASAN_OPTIONS:-}" ] || { echo 'skipped: the whole check has it'; exit 77; }
command -v python3 >/dev/null || { echo 'skipped: there is no python3'; exit 77; }
soak=$srcdir/contrib/soak
failed=0
# what a sanitizer keeps of freed memory would look like a leak; whole stacks as in ranks.bash
export ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}quarantine_size_mb=1:thread_local_quarantine_size_kb=16"
export ASAN_OPTIONS="$ASAN_OPTIONS:fast_unwind_on_malloc=0"
# each second it tells what it uses, and eight times are needed
"$soak" --build "$PWD" --seconds 12 --every 2 --ranks 3 --ways mapped || failed=1
for wrong in '--ways smoke' '--every 0' '--ranks 1' '--build /nowhere'; do
    "$soak" --build "$PWD" $wrong >/dev/null 2>&1
    [ $? -eq 2 ] || { echo "soak $wrong: not refused"; failed=1; }
done
exit $failed
