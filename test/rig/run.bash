# SPDX-License-Identifier: BSD-3-Clause
# What the tests of xep_run and of the bootstrap share: a folder of their own, and expectations. Sourced.
set -u
: "${builddir:=$PWD}"
run=$builddir/xep_run
client=$builddir/test/mp/launch/boot_client.mp
tmp=$(mktemp -d) || exit 99
failed=0
export TMPDIR=$tmp/tmp # what xep_run leaves behind would be here
mkdir "$TMPDIR"

# on every way out: nothing may be left of what xep_run wrote
finish() {
    status=$?
    [ "$failed" -eq 0 ] || status=1
    left=$(ls -A "$TMPDIR")
    [ -z "$left" ] || { echo "left in TMPDIR: $left"; status=1; }
    rm -rf "$tmp"
    exit "$status"
}
trap finish EXIT

wrong() {
    echo "$*"
    failed=1
}

# is STATUS PATTERN COMMAND...: whether it ends with that exit status, and a line of what it prints has the extended
# regular expression
is() {
    wanted=$1 pattern=$2
    shift 2
    timeout -k 5 $((100 * ${XEP_TEST_SLOW:-1})) "$@" >"$tmp/out" 2>&1 </dev/null
    got=$?
    [ "$got" -eq "$wanted" ] && grep -Eq -e "$pattern" "$tmp/out"
}

# expect STATUS PATTERN COMMAND...: it must
expect() {
    if ! is "$@"; then
        shift 2
        wrong "$*: status $got, expected $wanted and \"$pattern\" in:"
        sed 's/^/    /' "$tmp/out"
    fi
}

# until COMMAND...: waits up to a minute for it to succeed
until_true() {
    for _ in $(seq 1200); do
        "$@" && return 0
        sleep 0.05
    done
    wrong "never came true: $*"
    return 1
}

# gone PID: whether a process has ended (a zombie has)
gone() {
    case $(sed 's/.*) //' "/proc/$1/stat" 2>/dev/null) in '' | Z*) return 0 ;; *) return 1 ;; esac
}

# here FILE: whether it has something in it
here() {
    [ -s "$1" ]
}
