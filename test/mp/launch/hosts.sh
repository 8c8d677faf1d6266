# SPDX-License-Identifier: BSD-3-Clause
# limit: 900, again: 2
# Several hosts with a network between them, launched by prterun: ranks numbered host by host and in turn, hosts of
# different sizes, cables that are slow, that lose, repeat and reorder packets, that are pulled.
. "$srcdir/test/rig/launch.bash" || exit 99
. "$srcdir/test/rig/prterun.bash" || exit 99
. "$srcdir/test/rig/hosts.bash" || exit 99

cleanup() { no_hosts; }
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-} XEP_PLUGIN_PATH=${XEP_PLUGIN_PATH:-}
launch=("${prterun[@]}" --prtemca plm ssh --prtemca plm_ssh_agent "$remote" --bind-to none -x LD_LIBRARY_PATH
    -x XEP_PLUGIN_PATH -x XEP_TIMEOUT -x XEP_PATH)
export XEP_PATH=auto
in_turn=(--map-by node:OVERSUBSCRIBE)
in_blocks=(--map-by slot:OVERSUBSCRIBE)

quants='none e4m3 ue8m0'
[ -z "${XEP_TEST_BRIEF:-}" ] || quants=none # the others are neither longer nor shorter than this

# all that the mode normal can, and what ll does with each of its casts, compared with the oracle
operations() {
    passes "$1, normal" "${@:2}" ./test/mp/ops/normal_ops.mp
    for quant in $quants; do
        passes "$1, ll, $quant" "${@:2}" ./xep_perf --mode ll --quant $quant --check-only --tokens 33 --hidden 1024 \
            --topk 3 --experts 12
    done
    passes "$1, ll, sums at owners by logfmt" "${@:2}" ./xep_perf --mode ll --combine logfmt --sum-at-owner \
        --check-only --tokens 33 --hidden 1024 --topk 3 --experts 12
}

hosts 4
whole '2 hosts of 2 ranks' 4 2 2 "${launch[@]}" "${in_blocks[@]}" --host h1:2,h2:2 -n 4
whole '2 hosts of 2 ranks, in turn' 4 2 2 "${launch[@]}" "${in_turn[@]}" --host h1:2,h2:2 -n 4
whole '3 and 1' 4 2 1 "${launch[@]}" "${in_blocks[@]}" --host h1:3,h2:1 -n 4
whole '3 hosts of 2, in turn' 6 3 2 "${launch[@]}" "${in_turn[@]}" --host h1:2,h2:2,h3:2 -n 6
whole '4 hosts of 1' 4 4 1 "${launch[@]}" "${in_blocks[@]}" --host h1:1,h2:1,h3:1,h4:1 -n 4
[ -n "${XEP_TEST_BRIEF:-}" ] ||
    operations '2 hosts of 2 ranks, in turn' "${launch[@]}" "${in_turn[@]}" --host h1:2,h2:2 -n 4
operations '3 and 1' "${launch[@]}" "${in_blocks[@]}" --host h1:3,h2:1 -n 4
passes '3 and 1, rows in pieces' "${launch[@]}" "${in_blocks[@]}" --host h1:3,h2:1 -n 4 ./test/mp/ops/pieces.mp
passes '2 hosts of 2 ranks, one comes late' "${launch[@]}" "${in_blocks[@]}" --host h1:2,h2:2 -n 4 \
    ./test/mp/failures/given_up_ops.mp
passes '3 hosts of 2, in turn, rows in pieces' "${launch[@]}" "${in_turn[@]}" --host h1:2,h2:2,h3:2 -n 6 \
    ./xep_perf --recv-rows 23 --check-only --tokens 61 --hidden 1024 --topk 5 --experts 36
for XEP_PATH in nodes flat; do
    passes "3 and 1, path $XEP_PATH" "${launch[@]}" "${in_turn[@]}" --host h1:3,h2:1 -n 4 ./test/mp/ops/normal_shapes.mp
    passes "3 hosts of 2, in turn, path $XEP_PATH" "${launch[@]}" "${in_turn[@]}" --host h1:2,h2:2,h3:2 -n 6 \
        ./xep_perf --check-only --tokens 61 --hidden 1024 --topk 5 --experts 36
    passes "3 hosts of 2, in turn, ll, path $XEP_PATH" "${launch[@]}" "${in_turn[@]}" --host h1:2,h2:2,h3:2 -n 6 \
        ./xep_perf --mode ll --check-only --tokens 61 --hidden 1024 --topk 5 --experts 36
done
XEP_PATH=nodes
passes '3 and 1, a group made by callbacks, path nodes' "${launch[@]}" "${in_turn[@]}" --host h1:3,h2:1 -n 4 \
    ./test/mp/groups/own_allgather.mp
XEP_PATH=auto

# await_carried BYTES: more of the second host
await_carried() {
    local before
    before=$(carried h2)
    for _ in $(seq $((600 * ${XEP_TEST_SLOW:-1}))); do
        [ $(($(carried h2) - before)) -lt "$1" ] || return 0
        sleep 0.1
    done
}

# pulled NAME MODE TIMEOUT HEARTBEAT: a cable is pulled in the middle of operations, which is when it has carried more
# than their beginning needs, until somebody has said who is missing. The launcher's own connections live through it, so
# the cable comes back before the job ends.
pulled() {
    name=$1
    local told='xep_perf: .* ranks?( [0-9]+,?)* [23]' # "rank 1 3", where a rank waits for one that waits itself
    echo "== $name"
    XEP_TIMEOUT=$3 XEP_HEARTBEAT=$4 timeout --foreground -k 10 $((120 * ${XEP_TEST_SLOW:-1})) "${launch[@]}" \
        -x XEP_HEARTBEAT "${in_blocks[@]}" --host h1:2,h2:2 -n 4 ./xep_perf --mode "$2" --tokens 64 --hidden 512 \
        --topk 4 --experts 16 --iters 1000000 >"$tmp/out" 2>"$tmp/err" &
    local job=$!
    await_carried 32000000
    unplug h2
    for _ in $(seq $((60 * ${XEP_TEST_SLOW:-1}))); do
        ! grep -Eq "$told" "$tmp/err" || break
        sleep 1
    done
    plug h2
    wait $job
    status=$?
    [ $status -ne 124 ] && [ $status -ne 137 ] || wrong 'it hung'
    [ $status -ne 0 ] || wrong 'nobody missed the cable'
    grep -Eq "$told" "$tmp/err" || wrong 'nobody on the first host says who is missing'
}
[ -n "${XEP_TEST_BRIEF:-}" ] || pulled 'a cable is pulled for longer than the deadline, normal' normal 6s inf
XEP_PATH=nodes
pulled 'a cable is pulled for longer than the deadline, normal by nodes' normal 6s inf
[ -n "${XEP_TEST_BRIEF:-}" ] || pulled 'a cable is pulled for longer than the deadline, ll by nodes' ll 6s inf
XEP_PATH=auto
pulled 'a cable is pulled for longer than the deadline, ll' ll 6s inf
pulled 'a cable is pulled, and the heartbeat tells' ll 600s 1s

# parted NAME MODE HOSTS "RANKS THAT GO ON" "RANKS THAT ARE CUT OFF": likewise under masks. Both halves are alive; only
# the larger one goes on, or of equals the one with rank 0. They write what they say to a file, as what a host prints
# comes only with its cable.
parted() {
    name=$1
    local says=$tmp/says goes_on=$4 cut_off=$5 count rank job
    count=$(wc -w <<<"$4 $5")
    : >"$says"
    echo "== $name"
    XEP_TIMEOUT=$((4 * ${XEP_TEST_SLOW:-1}))s XEP_HEARTBEAT=inf timeout --foreground -k 10 \
        $((120 * ${XEP_TEST_SLOW:-1})) "${launch[@]}" -x XEP_HEARTBEAT "${in_blocks[@]}" --host "$3" -n "$count" \
        ./test/mp/failures/killed "$2" parted 99 0 "$says" mask >"$tmp/out" 2>"$tmp/err" &
    job=$!
    await_carried 16000000
    unplug h2
    for _ in $(seq $((60 * ${XEP_TEST_SLOW:-1}))); do
        [ "$(grep -c '^without' "$says")" -lt "$count" ] || break
        sleep 1
    done
    cp "$says" "$tmp/apart"
    plug h2
    wait $job
    status=$?
    [ $status -ne 124 ] && [ $status -ne 137 ] || wrong 'it hung'
    for rank in $goes_on; do
        grep -qx "without $rank $cut_off" "$tmp/apart" || wrong "rank $rank does not go on: $(cat "$says")"
        ! grep -q "^told $rank " "$says" || wrong "rank $rank is not well: $(cat "$says")"
    done
    for rank in $cut_off; do
        grep -q "^told $rank .* XEP_ERR_PEER: .*out of the group: it is cut off from most of the others" "$tmp/apart" ||
            wrong "rank $rank is not told that it is cut off: $(cat "$says")"
        grep -qx "without $rank" "$tmp/apart" || wrong "rank $rank went on: $(cat "$says")"
    done
    [ "$(grep -c '^left' "$says")" -eq "$count" ] || wrong "somebody did not leave: $(cat "$says")"
}
parted 'a cable is pulled under masks, ll' ll h1:2,h2:2 '0 1' '2 3'
[ -n "${XEP_TEST_BRIEF:-}" ] || parted 'a cable is pulled under masks, normal' normal h1:2,h2:2 '0 1' '2 3'
parted 'a cable is pulled under masks, and rank 0 is alone' normal h1:1,h2:2 '1 2' 0
no_hosts

hosts 2 200mbit
whole 'at 200 Mbit/s' 4 2 2 "${launch[@]}" "${in_blocks[@]}" --host h1:2,h2:2 -n 4
no_hosts

impaired 2 --delay 2 --loss 1 --repeat 1 --reorder 3
whole 'packets lost, repeated and reordered' 4 2 2 "${launch[@]}" "${in_blocks[@]}" --host h1:2,h2:2 -n 4
XEP_PATH=nodes
passes 'packets lost, repeated and reordered, by nodes' "${launch[@]}" "${in_blocks[@]}" --host h1:2,h2:2 -n 4 \
    ./xep_perf --check-only --tokens 61 --hidden 1024 --topk 5 --experts 36
passes 'packets lost, repeated and reordered, ll by nodes' "${launch[@]}" "${in_blocks[@]}" --host h1:2,h2:2 -n 4 \
    ./xep_perf --mode ll --check-only --tokens 61 --hidden 1024 --topk 5 --experts 36
kill "$relay"
wait "$relay"
relay=
for fate in lost repeated reordered; do
    grep -q "'$fate': [1-9]" "$tmp/relay" || { echo "no packet was $fate: $(cat "$tmp/relay")"; failed=1; }
done
no_hosts
exit $failed
