# SPDX-License-Identifier: BSD-3-Clause
# The protocols of both modes as models, checked by spin: every order of every step of 3 ranks. Deliberate defects must
# be found. "make model" runs the full sizes: this script with the argument "full".
# docs/results/protocol-models.md says more.
#
# limit: 600
set -u
models=${srcdir:=$(dirname "$0")/../..}/test/model
models=$(cd "$models" && pwd) || exit 99
size=${1:-small}
# no change of the library changes them
[ "$size" = full ] || [ -z "${XEP_TEST_BRIEF:-}" ] || { echo 'skipped: the whole check has it'; exit 77; }
command -v spin >/dev/null || { echo 'skipped: spin is not installed (Debian: spin)'; exit 77; }
read -r -a compiler <<<"${CC:-cc}"
command -v "${compiler[0]}" >/dev/null || { echo 'skipped: no C compiler'; exit 77; }
tmp=$(mktemp -d) || exit 99
trap 'rm -rf "$tmp"' EXIT
failed=0

# a model that has gone wrong must not take the machine: 6 GB, 300 s
ulimit -v 6000000 2>/dev/null
# Small models take longer to compile with the optimiser than they run, and a third less without compressed states. tcc
# (Debian: tcc) compiles them in a fifteenth of the time that gcc takes, clang in little more than half. Their table of
# states is small: touching one of 2^24 words, pan's own choice, costs most of them more than all else.
optimiser=("${compiler[@]}")
case $size in
full) how='-O2 -DCOLLAPSE' limit=300 table= ;;
*)
    how=-O0 limit=100 table=-w20
    for quick in tcc clang; do
        command -v $quick >/dev/null && compiler=($quick) && break
    done
    ;;
esac

# explore MODEL DEFINES...: the states of a model, to $tmp/out. Without errors: 0
explore() {
    local model=$1
    shift
    rm -rf "$tmp/pan"
    mkdir "$tmp/pan"
    (
        cd "$tmp/pan" || exit 99
        spin -a "$@" "$models/model_$model.pml" >"$tmp/out" 2>&1 || exit 99
        "${compiler[@]}" $how -w -DSAFETY -DMEMLIM=5500 -o pan pan.c >>"$tmp/out" 2>&1 || exit 99
        # -E: a process that waits for ever is no error by itself; the model's monitor says what is
        timeout $((limit * ${XEP_TEST_SLOW:-1})) ./pan -m100000 $table -E >>"$tmp/out" 2>&1
    )
    [ $? -ne 99 ] || { cat "$tmp/out"; exit 99; }
    states=$(sed -n 's/^ *\([0-9.e+]*\) states, stored.*/\1/p' "$tmp/out")
    seconds=$(sed -n 's/^pan: elapsed time \([0-9.e+]*\) seconds/\1/p' "$tmp/out")
}

tell() {
    printf '%-6s %-60s %9s states, %s s: %s\n' "$1" "$2" "${states:-?}" "${seconds:-?}" "$3"
}

# proved MODEL DEFINES...: all states were seen, and no error
proved() {
    explore "$@"
    local name=$1
    shift
    # what is cut off by a limit says so, or says nothing at all
    if grep -q 'errors: 0' "$tmp/out" && ! grep -qE 'not completed|too small|out of memory' "$tmp/out"; then
        tell "$name" "$*" 'no error'
    else
        tell "$name" "$*" FAILED
        grep -E '^pan' "$tmp/out" | cut -c 1-400
        failed=1
    fi
}

# many COMMAND...: for a model of millions of states, which is worth the optimiser, and a table with room for them
many() {
    local compiler=("${optimiser[@]}")
    [ "$size" = full ] || local how=-O1 table=-w23
    "$@"
}

# found MODEL DEFINES...: what is wrong on purpose is found
found() {
    explore "$@"
    local name=$1
    shift
    if grep -q '^pan:1: assertion violated' "$tmp/out"; then
        tell "$name" "$*" found
    else
        tell "$name" "$*" 'NOT FOUND'
        failed=1
    fi
}

defects() {
    local mode
    for mode in normal ll; do
        found $mode -DAGAIN -DDEFECT_DRAIN # an input is written before the last combine has been read
        found $mode -DDEFECT_SIGNAL        # a signal goes out before the data it stands for
        found $mode -DAGAIN -DDEFECT_READ  # rows are said to be read before they are
        found $mode -DAGAIN -DDEFECT_READY # the sum does not wait for one of the owners
        found $mode -DBAD -DDEFECT_VERDICT # not every rank hears of what one has against it
        found $mode -DAGAIN -DDEATH -DDEFECT_DEAD # nobody waits for a rank that is known to be dead
        found $mode -DMAPPED=0 -DPAIRS -DOPS=4 -DDEFECT_FLUSH # an operation ends before the wire has let go of its rows
        found $mode -DOPS=5 -DDISPATCHES -DDEFECT_TURN # a dispatch begins while one of SLOTS turns before is in flight
    done
    found normal -DDEFECT_INDEX # counts at the own slot, not at the turn
    found normal -DDEFECT_SLOT  # rows into the slot that the sender has
    found ll -DDEFECT_RING      # a ring of 1 * SLOTS
    found ll -DDEFECT_NOTICES   # rows are read when one of the notices is missing
    found ll -DSLOTS=1 -DLATE -DUNBORN -DDEFECT_ORDER # a dispatch that never begins has a turn too
}

# What the models find in the protocols as they are. Once it is repaired, "found" becomes "proved".
known() {
    # An operation ended by the deadline gives the caller memory back that puts still read; their signal follows.
    for mode in normal ll; do found $mode -DMAPPED=0 -DPAIRS -DDEATH -DCHANGED; done
}

# Who is out, agreed on whoever dies, or is only slow, meanwhile.
agreement() {
    proved mask
    proved mask -DOPS=1 -DSLOW
    proved mask -DWIRE # ranks that do not map one another
    proved mask -DOPS=1 -DWIRE -DSLOW
    found mask -DOPS=2 -DDEFECT_ADOPT        # what others have does not count
    found mask -DOPS=2 -DDEFECT_SAME         # it is decided before all say the same
    found mask -DOPS=2 -DWIRE -DDEFECT_ADOPT
    found mask -DOPS=2 -DWIRE -DDEFECT_SAME
    found mask -DOPS=1 -DWIRE -DSLOW -DDEFECT_FROZEN
    found mask -DOPS=2 -DSLOW -DDEFECT_FROZEN # operations go on while the ranks agree
    found mask -DRANKS=4 -DDEATHS=2 -DOPS=2 -DSLOTS=1 -DDEFECT_SAME
}

# Dispatches of normal without ranks: the same places at all survivors, and nobody's rows on those of others.
rows() {
    proved rows -DOPS=1 -DSLOW
    proved rows -DOPS=1 -DDEATHS=2
    found rows -DOPS=1 -DDEATHS=2 -DDEFECT_FIRST  # ranks do not agree on records
    found rows -DOPS=1 -DDEATHS=2 -DDEFECT_DIGEST # rows of the dead are taken though they lie elsewhere
    found rows -DOPS=1 -DSLOW -DDEFECT_QUIET      # nobody waits for a rank that is out and still stores
    found rows -DOPS=1 -DSLOW -DDEFECT_LOOK       # a rank looks before it says that it stores
}

# The same in messages: room that receivers grant, verdicts that are taken over.
grants() {
    many proved grants -DOPS=2
    proved grants -DOPS=2 -DSLOTS=1 # words and slots are used again
    proved grants -DOPS=1 -DBAD -DDEATHS=2
    found grants -DOPS=2 -DSLOTS=1 -DDEFECT_SLOT # an operation does not wait for the end of the one whose slot it has
    found grants -DOPS=1 -DDEFECT_GRANT        # places follow from the records that a rank has
    found grants -DOPS=1 -DDEFECT_ROOM         # room is granted before it is known where other rows are
    found grants -DOPS=1 -DSLOW -DDEFECT_PART  # what a rank sends that is out is stored
    found grants -DOPS=1 -DBAD -DDEFECT_LATE   # a dispatch counts as concluded only when it has ended
    found grants -DOPS=1 -DBAD -DDEFECT_RULE   # verdicts are not taken over
    found grants -DOPS=1 -DBAD -DDEFECT_FROZEN # operations go on while the ranks agree
}

# A group that shrinks: the ranks that are left have the same one.
shrink() {
    proved shrink
    proved shrink -DDEATHS=2
    proved shrink -DDEATHS=0 -DSLOW # one is left out although it lives
    found shrink -DDEFECT_SAME   # it is decided though ranks know of different ones that were ready
    found shrink -DDEFECT_SPOILT # a rank becomes ready for a group with one that it suspects
    found shrink -DDEFECT_LISTEN # what a suspect says counts
}

# A group that grows: when a member dies in its last word, nobody is left with a group that others have not.
grow() {
    proved grow
    found grow -DDEFECT_DOUBT              # who lacks a word only returns an error
    found grow -DDEATHS=2 -DDEFECT_VERDICT # a joiner believes rank 0 that there is no group
    found grow -DDEATHS=2 -DDEFECT_RELAY   # who hears that the group is none does not pass it on
}

# By nodes: rows that are passed on, in rings that are smaller than what passes.
nodes() {
    proved nodes -DSLOTS=1
    proved nodes -DSLOTS=1 -DROWS=3
    many proved nodes -DSLOTS=1 -DROWS=3 -DRING=2
    proved nodes -DALONE
    many proved nodes -DALONE -DOPS=4
    found nodes -DALONE -DOPS=1 -DDEFECT_ROOM  # one row more than there is room for
    found nodes -DALONE -DOPS=1 -DDEFECT_TAKEN # a row counts as taken when it has come, and is not yet stored
    found nodes -DALONE -DOPS=2 -DSLOTS=1 -DDEFECT_EPOCH # what was taken in an earlier dispatch counts
    found nodes -DOPS=1 -DDEFECT_CYCLE         # a rank stores what passes when its own rows are sent
    found nodes -DOPS=2 -DSLOTS=1 -DDEFECT_DONE # local ranks hear that all is done before all is stored
    found nodes -DOPS=2 -DSLOTS=1 -DDEFECT_TURN # a dispatch begins while one of SLOTS turns before is in flight
}

# Rows that come in pieces, and outputs that are kept until the last one.
pieces() {
    proved pieces
    many proved pieces -DPUTS
    proved pieces -DPUTS -DPIECES=3 -DRANKS=2
    found pieces -DPUTS -DDEFECT_OPEN # rows go out before all have opened their slots
    found pieces -DDEFECT_EARLY       # a slot is opened while its consumer reads
    found pieces -DDEFECT_LAZY        # a slot is opened only after the own rows have left
    found pieces -DDEFECT_END         # a piece ends before all have told that it is here
    found pieces -DDEFECT_KEEP        # outputs go out before the reader has begun the dispatch
    many found pieces -DPUTS -DDEFECT_LEAVE # a slot is opened while the wire still takes outputs from it
}

# Dispatches of ll whose receive rings hold less than what comes.
recv_rings() {
    proved recv_ring
    proved recv_ring -DALONE
    proved recv_ring -DBAD=1
    proved recv_ring -DROWS=3 -DROOM=1
    found recv_ring -DDEFECT_RING  # receive rings of a ring of 1 * SLOTS
    found recv_ring -DDEFECT_ROOM  # one row more than there is room for
    found recv_ring -DDEFECT_EPOCH # what was taken in an earlier dispatch counts
    found recv_ring -DDEFECT_LOCAL  # a row counts as taken when the forwarder has it, and not its local rank
    found recv_ring -DDEFECT_TAKEN # a row counts as taken when it has come, and is not yet at its place
    found recv_ring -DBAD=1 -DDEFECT_VERDICT # where nothing is moved, nobody says that nothing more comes
}

# Ranks that serve: they return between two steps, the same of all buffers, whoever is late or ahead.
serving() {
    proved serve -DFROZEN
    found serve -DDEFECT_HOLD # who is told to stop begins an operation of the next step
    found serve -DDEFECT_MAX  # an operation is held that is of the step under way in another buffer
    found serve -DFROZEN -DDEFECT_ONE  # one buffer alone counts
    found serve -DFROZEN -DDEFECT_NEXT # words alone count, and those of a rank that is ahead are of a later step
    found serve -DOPS=2 -DDEFECT_FOLLOW # who is told to stop takes no part in what was announced at once
    found serve -DFROZEN -DOPS=2 -DDEFECT_TOLD # the last operation that a rank has announced tells its step
}

small() {
    local mode
    serving
    agreement
    rows
    grants
    shrink
    grow
    nodes
    pieces
    recv_rings
    for mode in normal ll; do
        proved $mode -DMAPPED=1 -DOPS=2 -DDEATH
        proved $mode -DMAPPED=1 -DPAIRS -DBAD
        proved $mode -DMAPPED=0 -DAGAIN -DZERO -DDEATH
        proved $mode -DMAPPED=7 -DSLOTS=1 -DLATE
        proved $mode -DSLOTS=1 -DLATE -DUNBORN
    done
    known
    defects
}

full() {
    local mode pairs
    serving
    proved serve
    proved serve -DDEATH
    proved serve -DFROZEN -DOPS=2 # operations that are announced at once
    proved serve -DDEATH -DOPS=2 -DSTEPS=1
    proved serve -DBOTH_SERVE -DSTEPS=1
    proved serve -DBOTH_SERVE -DDEATH -DSTEPS=1
    agreement
    rows
    shrink
    grow
    nodes
    pieces
    recv_rings
    proved pieces -DPUTS -DPIECES=3
    proved grow -DDEATHS=2
    proved grow -DSLOW # members give up though nobody has died
    proved shrink -DSLOW
    proved mask -DSLOW
    proved mask -DDEATHS=2
    proved mask -DOPS=2 -DWIRE -DDEATHS=2
    proved rows
    proved rows -DOPS=2 -DDEATHS=2
    proved rows -DOPS=1 -DSLOW -DDEATHS=2
    grants
    proved grants -DOPS=3
    proved grants -DOPS=3 -DSLOTS=1 -DBAD
    proved grants -DOPS=2 -DBAD -DDEATHS=2
    proved grants -DOPS=2 -DSLOTS=1 -DBAD -DDEATHS=2
    proved grants -DOPS=1 -DSLOW -DBAD
    proved grants -DOPS=2 -DSLOTS=1 -DSLOW
    for mode in normal ll; do
        for pairs in 7 3 1 0; do
            proved $mode -DMAPPED=$pairs
            proved $mode -DMAPPED=$pairs -DZERO
            proved $mode -DMAPPED=$pairs -DLATE
            proved $mode -DMAPPED=$pairs -DBAD
        done
        proved $mode -DMAPPED=1 -DSLOTS=1 -DOPS=4 -DLATE
        proved $mode -DMAPPED=1 -DPAIRS -DOPS=6
    done
    proved normal -DMAPPED=1 -DLATE -DUNBORN
    proved ll -DMAPPED=1 -DOPS=5 -DDISPATCHES # the ring of 2 * SLOTS comes round
    for mode in normal ll; do
        for pairs in 7 3 1 0; do proved $mode -DMAPPED=$pairs -DDEATH; done
    done
    known
    defects
}

$size
exit $failed
