# SPDX-License-Identifier: BSD-3-Clause
# What the tests of xep_run and of the bootstrap share: a folder of their own, and expectations. Sourced.
set -u
: "${builddir:=$PWD}"
run=$builddir/xep_run
client=$builddir/test/mp/boot_client.mp
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

# expect STATUS PATTERN COMMAND...: exit status, and an extended regular expression for a line of what it prints
expect() {
    wanted=$1 pattern=$2
    shift 2
    timeout -k 5 60 "$@" >"$tmp/out" 2>&1 </dev/null
    got=$?
    if [ "$got" -ne "$wanted" ] || ! grep -Eq -e "$pattern" "$tmp/out"; then
        wrong "$*: status $got, expected $wanted and \"$pattern\" in:"
        sed 's/^/    /' "$tmp/out"
    fi
}

# until COMMAND...: waits up to 10 seconds for it to succeed
until_true() {
    for _ in $(seq 200); do
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
