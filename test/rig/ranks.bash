# SPDX-License-Identifier: BSD-3-Clause
# Sourced by tests that run programs on ranks again and again, each time with other settings: VAR=VALUE before the rest.
# in_brief says whether XEP_TEST_BRIEF asks for few of them, in_quick for the fewest; $slow is the factor on limits.
set -u
dir=$(mktemp -d) || exit 99
trap 'rm -rf "$dir"' EXIT
failed=0
slow=${XEP_TEST_SLOW:-1}
# where ranks die while others connect to them, UCX leaks what contrib/lsan.supp finds in whole stacks alone
whole_stacks=${ASAN_OPTIONS:+$ASAN_OPTIONS:}fast_unwind_on_malloc=0

in_brief() { [ -n "${XEP_TEST_BRIEF:-}" ]; }
in_quick() { [ "${XEP_TEST_BRIEF:-}" = quick ]; }

# on_ranks RANKS [VAR=VALUE...] [OPTION...] PROGRAM [ARGUMENT...]: of xep_run; its output into $dir/out, its status into
# $status
on_ranks() {
    local ranks=$1 settings=("XEP_TIMEOUT=$((60 * slow))s")
    shift
    while [[ $1 == [A-Z]*=* ]]; do
        settings+=("$1")
        shift
    done
    env "${settings[@]}" timeout $((120 * slow)) ./xep_run -n "$ranks" "$@" >"$dir/out" 2>&1
    status=$?
}

wrong() {
    echo "$*: status $status, output:"
    tail -n 40 "$dir/out"
    failed=1
}

# say WORD COUNT: whether so many of the ranks say that, at the beginning of a line
say() {
    [ "$(grep -c "^$1" "$dir/out")" -eq "$2" ]
}

# passes RANKS FOLDER/TEST [VAR=VALUE...]: a program of the suite
passes() {
    on_ranks "$1" "${@:3}" "./test/mp/$2.mp"
    [ $status -eq 0 ] || wrong "$2 on $1 ranks with ${*:3}"
}

# check RANKS [VAR=VALUE...] OPTION...: xep_perf compares every byte; the program itself, not libtool's script around it
check() {
    local ranks=$1 settings=()
    shift
    while [[ $1 == [A-Z]*=* ]]; do
        settings+=("$1")
        shift
    done
    on_ranks "$ranks" "${settings[@]}" .libs/xep_perf "$@"
    [ $status -eq 0 ] && grep -q '^check: every byte compared, ok$' "$dir/out" ||
        wrong "xep_perf $* on $ranks ranks with ${settings[*]}"
}
