#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# limit: 200
# xep_perf --simulate: what it counts is counted once more from the routing that it writes down, in plain loops; every
# number of ranks up to 4096; what is refused, and how.
. "$srcdir/test/rig/run.bash"
command -v python3 >/dev/null || { echo 'skipped: there is no python3'; exit 77; }

cat >"$tmp/again.py" <<'END'
"""again.py ROUTES NODES HIDDEN RESULT OPTION..: sizes of the nodes, with + between them"""
import json, math, sys
sizes, result = [int(size) for size in sys.argv[2].split("+")], json.load(open(sys.argv[4]))
R, E, K, row = result["ranks"], result["experts"], result["topk"], 2 * int(sys.argv[3])
back_bytes = row // 2 + -(-(row // 2) // 128) * 4 if "mxfp8" in sys.argv else row  # four scales of 32 in a word
ll = result["mode"] == "ll"  # with e4m3: a byte for each channel, a scale for 128 of them
node = [n for n, size in enumerate(sizes) for _ in range(size)]
members = [[r for r in range(R) if node[r] == n] for n in range(len(sizes))]
owned = [E // R + (r < E % R) for r in range(R)]
owner = [r for r in range(R) for _ in range(owned[r])]
tokens = []  # (source, ranks)
for line in open(sys.argv[1]):
    words = line.split("#")[0].split()
    if words:
        tokens.append((int(words[0]), [owner[int(e)] for e in words[2:] if e != "-1"]))
selections = [(source, [owner]) for source, owners in tokens for owner in owners]
tokens = [(source, set(owners)) for source, owners in tokens]
assert R == sum(sizes) and result["nodes"] == len(sizes)
received = [sum(r in ranks for _, ranks in (selections if ll else tokens)) for r in range(R)]
assert math.isclose(result["rows"]["mean"], sum(received) / R) and result["rows"]["most"] == max(received)

def forwarder(source, n):
    return members[n][members[node[source]].index(source) % len(members[n])]

def hops(path, source, ranks):
    """(from, to) of each time that a row is handed on"""
    for r in ranks:
        if node[r] == node[source] or path == "flat":
            yield source, r
        else:
            yield forwarder(source, node[r]), r
    if path == "nodes":
        for n in {node[r] for r in ranks} - {node[source]}:
            yield source, forwarder(source, n)

def check(name, op, values):
    mean, most = sum(values) / R, max(values)
    assert math.isclose(op["mean"][name], mean), (name, op["mean"][name], mean)
    assert math.isclose(op["most"][name], most), (name, op["most"][name], most)

def count(path, rows):
    near, sent, came, taken = [0] * R, [0] * R, [0] * R, [0] * R
    for source, ranks in rows:
        for one, other in hops(path, source, ranks):
            if node[one] != node[other]:
                sent[one] += 1
                came[other] += 1
            elif one != other:
                near[one] += 1
                taken[other] += 1
    return near, sent, came, taken

def check_ll(path):
    item, head = -(-(row // 2 + 4 * -(-(row // 2) // 128)) // 64) * 64, 4 * K * result["tokens"] + 64
    by_nodes = path["path"] == "nodes"
    far = [len(sizes) - 1 if by_nodes else R - len(members[node[r]]) for r in range(R)]
    dispatch, combine = path["ops"]
    near, sent, came, taken = count(path["path"], tokens)
    check("near_rows", dispatch, taken)
    check("sent_rows", dispatch, sent)
    check("came_rows", dispatch, came)
    check("sent_bytes", dispatch, [sent[r] * item + far[r] * head for r in range(R)])
    near, sent, came, taken = count("flat", tokens if "--sum-at-owner" in sys.argv else selections)
    far = [R - len(members[node[r]]) for r in range(R)]
    check("near_rows", combine, near)
    check("sent_rows", combine, came)
    check("came_rows", combine, sent)
    check("came_bytes", combine, [sent[r] * back_bytes + far[r] * 80 for r in range(R)])
    total = sum(came[r] * back_bytes + far[r] * 80 for r in range(R))
    assert math.isclose(combine["network_bytes"], total), (combine["network_bytes"], total)

for path in result["paths"]:
    if ll:
        check_ll(path)
        continue
    near, sent, came, _ = count(path["path"], tokens)
    by_nodes = path["path"] == "nodes"
    dispatch, combine = path["ops"]
    counts = 4 * (R + (E if by_nodes else owned[0])) + (16 if by_nodes else 0)
    record = -(-(104 + counts) // 64) * 64
    far = [len(sizes) - 1 if by_nodes else R - len(members[node[r]]) for r in range(R)]
    bytes_each = row + 4 + K * (8 if by_nodes else 12)
    check("near_rows", dispatch, near)
    check("sent_rows", dispatch, sent)
    check("came_rows", dispatch, came)
    check("sent_bytes", dispatch, [sent[r] * bytes_each + far[r] * (80 + record) for r in range(R)])
    check("near_bytes", dispatch, [near[r] * (row + 4 + 12 * K) for r in range(R)])
    check("near_messages", dispatch, [2 * (len(members[node[r]]) - 1) for r in range(R)])
    check("sent_rows", combine, came)
    check("came_rows", combine, sent)
    far = [R - len(members[node[r]]) for r in range(R)]
    check("came_bytes", combine, [sent[r] * row + far[r] * 80 for r in range(R)])
    total = sum(came[r] * row + far[r] * 80 for r in range(R))
    assert math.isclose(combine["network_bytes"], total), (combine["network_bytes"], total)
END

# again RANKS,PER_NODE SIZES OPTION..: sizes of all nodes
again() {
    local nodes=$1 sizes=$2
    shift 2
    "$builddir/xep_perf" --simulate "$nodes" --hidden 64 --record "$tmp/routes" --json "$tmp/result" "$@" >"$tmp/out" &&
        python3 "$tmp/again.py" "$tmp/routes" "$sizes" 64 "$tmp/result" "$@" || wrong "$nodes $*: see above"
}
if [ -z "${XEP_TEST_BRIEF:-}" ]; then
    again 8,4 4+4 --tokens 50 --experts 32
    again 8,3 3+3+2 --tokens 20 --experts 21 --topk 5 --routing group:3,2
    again 4,3+1 3+1 --tokens 40 --experts 8 --topk 8 --routing zipf:1.2
    again 6,1 1+1+1+1+1+1 --tokens 9 --experts 12 --topk 2
    again 5,8 5 --tokens 9 --experts 40 --topk 4
    again 8,3 3+3+2 --mode ll --tokens 20 --experts 21 --topk 5 --routing group:3,2
    again 4,3+1 3+1 --mode ll --tokens 40 --experts 8 --topk 8 --routing zipf:1.2
fi
again 11,5+1 5+1+5 --tokens 13 --experts 30 --topk 3 --mask 300
again 6,3 3+3 --tokens 31 --experts 20 --topk 6
again 11,5+1 5+1+5 --mode ll --tokens 13 --experts 30 --topk 3 --mask 300
again 11,5+1 5+1+5 --mode ll --tokens 13 --experts 30 --topk 3 --combine mxfp8
again 8,4 4+4 --mode ll --tokens 20 --experts 21 --topk 5 --combine mxfp8 --sum-at-owner
again 7,2 2+2+2+1 --tokens 30 --experts 5 --topk 2 --routing self

# what was written down is the same job
cp "$tmp/result" "$tmp/drawn"
"$builddir/xep_perf" --simulate 7,2 --hidden 64 --experts 5 --topk 2 --routing "file:$tmp/routes" --json "$tmp/read" \
    >"$tmp/out"
cmp "$tmp/drawn" "$tmp/read" || wrong 'the routing of a file is another one'

# other rates, other times, another path
perf=$builddir/xep_perf
job="--simulate 16,8 --tokens 64 --hidden 1024"
expect 0 '^path: nodes \(' $perf $job --rates network=0.1
expect 0 '^path: flat \(' $perf $job --rates network=0,rank=0,copy=0.1,message=0
expect 0 '^path: flat \(' $perf --simulate 16,1 --tokens 64 --hidden 1024 --rates network=0.1
expect 0 '^path: nodes \(' $perf $job --mode ll --rates network=0,rank=1,copy=0.1,message=0
expect 0 ', mode ll, quant e4m3$' $perf $job --mode ll
expect 0 '^flat +dispatch +mean +186 +0\.40 ' $perf $job
expect 0 '^flat +dispatch +mean +186 +0\.13 ' $perf $job --quant nvfp4
expect 0 '^path: flat \(' $perf --simulate 16,1 --mode ll --tokens 64 --hidden 1024 --rates network=0.1
expect 0 '^network 0\.1 GB/s a node, 2 a rank; memory 3 GB/s a rank, 4 a node \(0: no bound\)$' \
    $perf $job --rates network=0.1,rank=2,copy=3,memory=4
expect 0 '^latency 5 us, a message 6 us; pieces of 7 KiB; room for 8 rows in passing$' \
    $perf $job --rates latency=5,message=6,piece=7,passing=8
expect 0 '^xep .*, simulated: 4096 ranks on 512 nodes$' $perf --simulate 4096,8 --tokens 16 --experts 4096
expect 0 '^xep .*, simulated: 1 rank on 1 node$' $perf --simulate 1,1 --tokens 16

# placements: even is even, whatever the routing; the more replicas, the less uneven; the same from a file
placed="--simulate 8,4 --tokens 64 --hidden 64 --experts 32 --topk 2 --placement"
expect 0 '^even +1\.000 ' $perf $placed --routing zipf:2
expect 0 '^blocks +8\.000 ' $perf $placed --routing one-rank
expect 0 '^64 replicas +1\.000 ' $perf $placed --routing one-rank
$perf $placed --routing zipf:1 --json - >"$tmp/placed"
python3 - "$tmp/placed" <<'END' || wrong "placements: $(cat "$tmp/placed")"
import json, sys
placed = json.load(open(sys.argv[1]))["placements"]
values = [each["imbalance"] for each in placed if each["name"] == "blocks" or "replica" in each["name"]]
assert len(values) == 6 and values == sorted(values, reverse=True) and values[-1] < values[0], values
END
$perf ${placed% --placement} --routing zipf:1 --record "$tmp/recorded" >/dev/null || wrong 'a routing is not written'
$perf $placed --routing "file:$tmp/recorded" --json - >"$tmp/again"
[ "$(sed 's/.*"placements"/placements/' "$tmp/again")" = "$(sed 's/.*"placements"/placements/' "$tmp/placed")" ] ||
    wrong "placements of a recorded routing: $(cat "$tmp/again")"
expect 2 '^xep_perf: --placement cannot be used without --simulate$' $perf --placement
expect 2 '^xep_perf: --placement cannot be used with --owners or --record$' $perf $job --placement --owners greedy
expect 2 '^xep_perf: --simulate cannot be used with --balance$' $perf $job --balance 8
expect 0 '^even +[0-9.]+ ' \
    "$run" -n 2 $perf --tokens 5 --topk 2 --experts 5 --hidden 70 --iters 1 --balance 3 --routing zipf:1

# a launcher's ranks say it once
"$run" -n 3 $perf $job >"$tmp/out" 2>&1
[ "$(grep -c '^path: ' "$tmp/out")" -eq 1 ] || wrong "three ranks: $(cat "$tmp/out")"

# ranks that are there take that path, and say which and why
there=("$run" -n 4 -N 2 -x XEP_LOG=info)
batch="--check-only --tokens 32 --hidden 256 --topk 4 --experts 16"
expect 0 'path nodes: it takes less time\. Of a row 0\.96 copies leave a node, flat 1\.46; a dispatch and its combine' \
    "${there[@]}" -x XEP_NET_RATE=20m $perf $batch
grep -q ', path nodes$' "$tmp/out" || wrong "xep_perf does not say so: $(cat "$tmp/out")"
expect 0 'path flat: it takes less time\. ' "${there[@]}" -x XEP_NET_RATE=100g -x XEP_MEMORY_RATE=50m $perf $batch
grep -q ', path flat$' "$tmp/out" || wrong "xep_perf does not say so: $(cat "$tmp/out")"
expect 0 'path nodes: it was asked for\. ' "${there[@]}" -x XEP_PATH=nodes $perf $batch
expect 0 'path flat: no node has two ranks\. ' "$run" -n 2 -N 2 -x XEP_LOG=info -x XEP_PATH=nodes $perf $batch

# memory is that of a buffer, but for the core's own words: a line and less for each rank
for mode in normal ll; do
    for path in flat nodes; do
        expect 0 'buffer of mode' "$run" -n 4 -N 2 -x XEP_LOG=info -x XEP_PATH=$path $perf --mode $mode $batch
        bytes=$(sed -n "s/.*buffer of mode $mode: \([0-9]*\) bytes.*/\1/p" "$tmp/out" | head -1)
        $perf --simulate 4,2 --mode $mode ${batch#--check-only} --json "$tmp/result" >"$tmp/out"
        python3 - "$tmp/result" $path "$bytes" <<'END' || wrong "memory of mode $mode, path $path: a buffer has $bytes"
import json, sys
told, = (p["memory_bytes"] for p in json.load(open(sys.argv[1]))["paths"] if p["path"] == sys.argv[2])
sys.exit(not told < int(sys.argv[3]) <= told + 4 * 128)
END
    done
done

form='\(RANKS,PER_NODE with 1 to 4096 ranks, as 64,8, or 16,8\+4 for nodes of 8 and 4 in turn\)$'
for text in 64 64,0 0,4 4097,8 64, 64,8+ 64,8+x 64,8,4 -4,2 ,4 ''; do
    expect 2 "^xep_perf: invalid --simulate: \"${text/+/\\+}\" $form" $perf --simulate "$text"
done
names='\(NAME=NUMBER of network, rank, copy, memory, latency, message, piece, passing\)$'
for text in net=1 network =1 ''; do
    expect 2 "^xep_perf: invalid --rates: \"$text\" $names" $perf $job --rates "$text"
done
for number in -1 1x nan 1e30 ' 1' '' 0x10; do
    expect 2 "^xep_perf: invalid --rates: \"rank=$number\" \(a number of GB/s from 0 to 1000000000\)$" \
        $perf $job --rates "copy=1,rank=$number"
done
expect 2 '^xep_perf: --rates cannot be used without --simulate$' $perf --rates rank=1
expect 2 '^xep_perf: --simulate cannot be used with mode mine: there is none, see --list$' $perf $job --mode mine
expect 2 '^xep_perf: --simulate cannot be used with --layout padded$' $perf $job --mode ll --layout padded
expect 2 '^xep_perf: --simulate cannot be used with rows by rank$' $perf $job --mode ll --layout rank
expect 2 '^xep_perf: --simulate cannot be used with rows by expert$' $perf $job --layout compact
expect 0 ', mode ll, quant nvfp4, combine logfmt, sums at owners$' \
    $perf $job --mode ll --quant nvfp4 --combine logfmt --sum-at-owner
expect 2 '^xep_perf: --simulate cannot be used with --check$' $perf $job --check
expect 2 '^xep_perf: --simulate cannot be used with --op$' $perf $job --op combine
echo '7 0 1' >"$tmp/seven"
expect 2 'line 1: invalid rank: "7"' $perf --simulate 4,2 --experts 5 --topk 2 --routing "file:$tmp/seven"
expect 1 '^xep_perf: cannot write --json /no/such/file: No such file' $perf $job --json /no/such/file
