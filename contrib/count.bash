# SPDX-License-Identifier: BSD-3-Clause
# Counts what a stage of check.sh finds, in its variables passed, failed and skipped, and shows what went wrong; runs
# again what may be a matter of load. Sourced.

pass() { passed=$((passed + 1)); }

# fail NAME [LOG]
fail() {
    failed=$((failed + 1))
    say "FAIL: $1"
    [ -z "${2:-}" ] || tail -n 200 "$2" | sed 's/^/    /'
}

skip() {
    skipped=$((skipped + 1))
    say "SKIP: $1: $2"
}

# Adds function and line to the traces of sanitizers, "#0 0x7f12 (/path/libxep.so+0x12)" (see check_asan).
with_symbols() {
    local line
    while IFS= read -r line; do
        say "$line"
        [[ $line =~ ^\ *#[0-9]+\ .*\((/[^\ +]*)\+(0x[0-9a-f]+)\) ]] &&
            addr2line -Cfpse "${BASH_REMATCH[1]}" "${BASH_REMATCH[2]}" | sed 's/^/        /'
    done
}

# slowest RESULT-FILE...: the ten tests that took longest, on one line
slowest() {
    local result
    for result; do
        sed -n "s|^# took \([0-9]*\)\..*|\1 ${result##*/}|p" "${result%.trs}.log" | tail -n 1
    done | sort -rn | sed -n '1,10s/^\(.*\) \(.*\)\.trs$/\2 \1 s/p' | paste -sd, | sed 's/,/, /g'
}

# again FOLDER RESULT-FILE [VARIABLE=VALUE...]: notes a failed test that compares times (as test/rig/run-test says), to
# be run alone when all else has ended. Only such: what is wrong once, whatever the time, is wrong.
again() {
    local folder=$1 test=${2#"$1"/} times
    test=${test%.trs}
    shift 2
    times=$(sed -n 's/^# again: //p' "$folder/$test.log" | tail -n 1)
    [ -n "$times" ] || return
    test=$(cd "$folder" && ls "$test".{t,mp} "$top/$test.sh" 2>/dev/null)
    test=${test#"$top"/}
    printf '%q ' "$times" "$folder" "$test" "$@" >>"$work/again"
    echo >>"$work/again"
}

# Runs those tests, one at a time; when all pass as often as they ask for, one failure less is counted.
run_again() {
    local words test ended n
    while read -ru 3 words; do
        eval "set -- $words" # written with %q
        for ((n = 1; n <= $1; n++)); do
            ended=$(bounded 900 env "${@:4}" make -C "$2" check TESTS="$3" 2>&1) || break
        done
        if [ "$n" -gt "$1" ]; then
            passed=$((passed + 1)) failed=$((failed - 1))
            say "ALONE: $3: passed $1 times when nothing else ran, after it had failed beside others"
        else
            say "FAIL: $3, alone too:"
            tail -n 40 <<<"$ended" | sed 's/^/    /'
        fi
    done 3<"$work/again"
}

# the tests of one run of make check, from the result files it leaves
count_suite() {
    local folder=$1 name=$2 results result log
    shift 2
    results=$(find "$folder/test" -name '*.trs' -newer "$folder/began" | sort)
    for result in $results; do
        log=${result%.trs}.log
        passed=$((passed + $(grep -c '^:test-result: PASS' "$result")))
        failed=$((failed + $(grep -cE '^:test-result: (FAIL|ERROR|XPASS)' "$result")))
        case $(sed -n 's/^:global-test-result: //p' "$result") in
        SKIP) skip "$name: ${result#"$folder"/}" "$(grep -hm1 '^skipped: ' "$log" | sed 's/^skipped: //')" ;;
        PASS) ;;
        *)
            say "FAIL: $name: ${log#"$top"/}" && tail -n 120 "$log" | with_symbols | sed 's/^/    /'
            again "$folder" "$result" "$@"
            ;;
        esac
    done
    say "$name: slowest: $(slowest $results)"
}

# count_line NAME LOG: of a script that ends with the line that this one ends with; shows what went wrong there
count_line() {
    if [[ $(tail -n 1 "$2") =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed,\ ([0-9]+)\ skipped$ ]]; then
        passed=$((passed + BASH_REMATCH[1])) failed=$((failed + BASH_REMATCH[2])) skipped=$((skipped + BASH_REMATCH[3]))
        [ "${BASH_REMATCH[2]}" -eq 0 ] || sed 's/^/    /' "$2" | tail -n 300
    else
        fail "$1: it did not come to its end" "$2"
    fi
}
