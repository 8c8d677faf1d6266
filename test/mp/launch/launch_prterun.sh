# SPDX-License-Identifier: BSD-3-Clause
# limit: 600, again: 2
# prterun as the launcher: the ranks with the system's PMIx, and with the launcher's own.
. "$srcdir/test/rig/launch.bash" || exit 99
. "$srcdir/test/rig/prterun.bash" || exit 99
here=(--map-by :OVERSUBSCRIBE --bind-to none)

whole '4 ranks' 4 1 4 "${prterun[@]}" "${here[@]}" -n 4
programs 'prterun' "${prterun[@]}" "${here[@]}" -n 4
meets 'prterun' 4 "${prterun[@]}" "${here[@]}" -n 4
goes_on 'prterun' "${prterun[@]}" "${here[@]}" --rtos recoverable,notifyerrors

own=$prefix/lib/openmpi
if [ -n "$prefix" ] && [ -e "$own/libpmix.so.2" ]; then
    theirs=("${prterun[@]}" "${here[@]}" -x "LD_LIBRARY_PATH=$builddir/.libs:$own")
    passes "xep_info with the launcher's PMIx" "${theirs[@]}" -n 1 ./xep_info
    grep -q "^pmix .*$own/libpmix" "$tmp/out" || wrong "the client's libpmix is not the launcher's"
    whole "4 ranks with the launcher's PMIx" 4 1 4 "${theirs[@]}" -n 4
    programs "prterun with the launcher's PMIx" "${theirs[@]}" -n 4
    meets "prterun with the launcher's PMIx" 4 "${theirs[@]}" -n 4
fi
exit $failed
