#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# limit: 500, again: 2
# A few of contrib/kills' trials: ranks killed at drawn moments, over memory and over sockets. XEP_TEST_SEED and
# XEP_TEST_RUNS draw others, and more. And that it sees what it is there to see.
set -u
command -v python3 >/dev/null || { echo 'skipped: there is no python3'; exit 77; }
kills=$srcdir/contrib/kills
failed=0
trials=12
[ -z "${XEP_TEST_BRIEF:-}" ] || trials=8
"$kills" --build "$PWD" --seed "${XEP_TEST_SEED:-5}" --trials "${XEP_TEST_RUNS:-$trials}" --jobs 2 --mask || failed=1

# wrong options are refused with what there is
for wrong in '--ways smoke' '--launchers ssh' '--trials 0' '--ucx /nowhere' '--build /nowhere' '--phases'; do
    "$kills" --build "$PWD" $wrong >/dev/null 2>&1
    [ $? -eq 2 ] || { echo "kills $wrong: not refused"; failed=1; }
done

# a library that names a survivor, one that takes too long, one that goes on waiting for a rank that is out, and one
# that hangs on to memory, are found: by ranks that only say so
mkdir -p "${TMPDIR:-/tmp}/liars/test/mp/failures"
liars=${TMPDIR:-/tmp}/liars
cat >"$liars/xep_run" <<'END'
#!/bin/sh
while [ "$1" != -n ]; do shift; done
count=$2
mask=
case "$*" in *' mask') mask=yes ;; esac
victim=$(echo "${*% mask}" | awk '{ print $(NF - 2) }')
says=$(echo "${*% mask}" | awk '{ print $NF }')
rank=0
while [ $rank -lt $count ]; do
    other=$(((victim + 1) % count))
    if [ $rank -ne $victim ] && [ $mask ]; then
        printf 'first %d 4\nlongest %d dispatch 15000\nwithout %d %d\n' $rank $rank $rank $victim >>"$says"
        [ $rank -eq $other ] || printf 'later %d combine 19000\n' $rank >>"$says"
        printf 'left %d\n' $rank >>"$says"
    elif [ $rank -ne $victim ]; then
        printf 'told %d dispatch XEP_ERR_PEER: rank %d has died\nlongest %d combine 99000\nleft %d\n' $rank $other \
            $rank $rank >>"$says"
    fi
    rank=$((rank + 1))
done
: >/dev/shm/xep_left_behind
END
chmod +x "$liars/xep_run"
: >"$liars/test/mp/failures/killed"
if out=$("$kills" --build "$liars" --trials 8 --phases dispatch --modes normal --ways mapped --mask 2>&1); then
    echo "lies were believed: $out"
    failed=1
fi
grep -q 'names a survivor' <<<"$out" || { echo "a survivor that is named is not noticed: $out"; failed=1; }
grep -q 'was in combine for 99.0 s (at most ' <<<"$out" || { echo "a call without end is not noticed: $out"; failed=1; }
grep -q 'was in combine for 19.0 s, when all knew who is gone (at most ' <<<"$out" ||
    { echo "who still waits for a rank that is out is not noticed: $out"; failed=1; }
grep -q 'does not say how long its later calls took' <<<"$out" ||
    { echo "who does not tell its times is not noticed: $out"; failed=1; }
grep -q 'was in dispatch for 15.0 s' <<<"$out" && { echo "a wait within its deadline is a fault: $out"; failed=1; }
grep -q 'no new namespaces' <<<"$out" || grep -q 'left behind by .*xep_left_behind' <<<"$out" ||
    { echo "what is left behind is not noticed: $out"; failed=1; }
rm -rf "$liars"

# it ends when it is told to, with all that it holds, though unshare heeds no signal
timeout -k 30 2 "$kills" --build "$PWD" --trials 1000 >/dev/null 2>&1
[ $? -eq 124 ] || { echo 'kills does not end when it is told to'; failed=1; }
exit $failed
