# SPDX-License-Identifier: BSD-3-Clause
# Sourced by tests that run programs on ranks again and again, each time with other settings: VAR=VALUE before the rest.
set -u
dir=$(mktemp -d) || exit 99
trap 'rm -rf "$dir"' EXIT
failed=0

# on_ranks RANKS [VAR=VALUE...] PROGRAM [ARGUMENT...]: its output into $dir/out, its status into $status
on_ranks() {
    local ranks=$1 settings=("XEP_TIMEOUT=$((60 * ${XEP_TEST_SLOW:-1}))s")
    shift
    while [[ $1 == [A-Z]*=* ]]; do
        settings+=("$1")
        shift
    done
    env "${settings[@]}" timeout $((120 * ${XEP_TEST_SLOW:-1})) ./xep_run -n "$ranks" "$@" >"$dir/out" 2>&1
    status=$?
}

wrong() {
    echo "$*: status $status, output:"
    tail -n 40 "$dir/out"
    failed=1
}

# passes RANKS TEST [VAR=VALUE...]: a program of the suite
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
