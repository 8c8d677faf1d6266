#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# limit: 240
# The commands with xep_perf, xep_info and xep_run that documents show run as they stand, but for smaller batches, fewer
# ranks and fewer points. (Their programs are run by test/abi/examples.sh and python/run-tests.)
. "$srcdir/test/rig/run.bash"
unset UCX_TLS XEP_MAP XEP_TRACE
cd "$tmp" || exit 99
PATH=$builddir:$PATH
export XEP_TIMEOUT=30s

# batches as small as they make sense; the last of an option counts
small='--tokens 8 --hidden 64 --iters 2 --warmup 1'

# commands: those of all documents that begin with a tool or a variable, without what explains them
commands() {
    sed -nE 's/^    (((UCX|XEP)_[A-Z_]+=[^ ]+ )*(xep_run|xep_perf|xep_info) .*)/\1/p' "$srcdir/README.md" \
        "$srcdir"/docs/{tutorial,howto,reference}/*.md |
        sed -E 's/ +#.*//; s/ (&&|\|) .*//; s/-n 8\>/-n 4/; s/=1\.\.[0-9]+/=1..2/; s/4096,8/16,8/' |
        grep -E 'xep_(perf|info)' | grep -vE 'memory cuda|\\$' | sort -u
}

# a routing for those that name the file "routes": that of a program, by the variables that documents show
XEP_RECORD=$tmp/recorded xep_run -n 4 xep_perf $small --experts 64 --topk 6 >"$tmp/out" 2>&1 ||
    wrong "XEP_RECORD: $(tail -1 "$tmp/out")"
cat recorded.? >routes

count=0
while read -r command; do
    count=$((count + 1))
    [ -z "${XEP_TEST_BRIEF:-}" ] || [ $((count % 3)) -eq 0 ] || continue
    case $command in
    *xep_info*) more= ;;
    *--simulate*) more="--tokens 8" ;;
    *) more=$small ;;
    esac
    timeout -k 5 $((60 * ${XEP_TEST_SLOW:-1})) bash -c "$command $more" >"$tmp/out" 2>&1 </dev/null ||
        { wrong "a document's command: $command (status $?)"; tail -2 "$tmp/out"; }
done < <(commands)
[ $count -ge 20 ] || wrong "only $count commands were found in documents"
