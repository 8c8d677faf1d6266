#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# limit: 120
# Routings that are written, by xep_perf --record and by XEP_RECORD: both are what was drawn, and read back the same.
. "${srcdir:-.}/test/rig/ranks.bash" || exit 99

small="--tokens 37 --hidden 64 --experts 24 --topk 4 --check-only"
routes=$dir/routes

# same FILE FILE: but for comments
same() {
    cmp -s <(grep -v '^#' "$1") <(grep -v '^#' "$2") || wrong "$1 and $2 differ"
}

# what the library saw is what xep_perf has drawn, in both modes; ranks over the wire, dispatches deferred or not
for mode in normal ll; do
    rm -f "$routes".*
    check 3 "XEP_RECORD=$routes" XEP_NODE_RANKS=2 $small --mode $mode --mask 300 --slots 2 --record "$dir/drawn"
    cat "$routes".[0-2] >"$dir/seen"
    [ "$(grep -vc '^#' "$dir/drawn")" -eq 111 ] || wrong "not 3 x 37 tokens in what xep_perf has written"
    same "$dir/drawn" "$dir/seen"
done
grep -qx '# dispatch 1 of rank 2 of 3: 37 tokens, top 4 of 24 experts' "$routes.2" || wrong "no comment in $routes.2"

# it is a routing: read, run, and written again
check 3 $small --routing "file:$dir/seen" --record "$dir/again"
same "$dir/seen" "$dir/again"

# ragged, with a rank that has no tokens: another dispatch than the first
printf '%s\n' '0 0 3 1 20 -1' '0 1 23 -1 -1 -1' '2 0 -1 -1 -1 -1' '2 1 0 1 2 3' >"$dir/ragged"
rm -f "$routes".*
check 3 "XEP_RECORD=$routes" XEP_RECORD_AT=2 --hidden 64 --experts 24 --topk 4 --routing "file:$dir/ragged" --check-only
cat "$routes".[0-2] >"$dir/seen"
same "$dir/ragged" "$dir/seen"

# a link of that name is not followed
rm -f "$routes".*
ln -s "$dir/precious" "$routes.1"
check 2 "XEP_RECORD=$routes" $small
[ ! -e "$dir/precious" ] && grep -q '^1 0 ' "$routes.1" || wrong 'a link was followed'

# one that never comes, one that cannot be written, one that cannot be meant
rm -f "$routes".*
check 2 "XEP_RECORD=$routes" XEP_RECORD_AT=1000 $small
grep -q 'warning: no routing is written: dispatch 1000 was asked for' "$dir/out" || wrong 'no warning'
[ -z "$(ls "$routes".* 2>/dev/null)" ] || wrong 'a routing that nobody asked for'
check 2 "XEP_RECORD=$dir/no/such" $small
grep -q "warning: the routing is not written: $dir/no/such.1: No such file" "$dir/out" || wrong 'no warning'
on_ranks 2 "XEP_RECORD=$routes" XEP_RECORD_AT=0 .libs/xep_perf $small
[ $status -ne 0 ] && grep -q 'invalid XEP_RECORD_AT: "0" (a whole number, at least 1)' "$dir/out" ||
    wrong 'XEP_RECORD_AT=0'
on_ranks 2 .libs/xep_perf $small --record "$dir/no/such"
[ $status -eq 1 ] && grep -q "cannot write $dir/no/such: No such file" "$dir/out" || wrong '--record nowhere'
exit $failed
