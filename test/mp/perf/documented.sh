#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# limit: 240
# The commands that documents show run as they stand, but for smaller batches, fewer ranks and fewer points. Those that
# other tests run, or none can, are named below with the reason: no other one may be in a document.
. "$srcdir/test/rig/run.bash"
unset UCX_TLS XEP_MAP XEP_TRACE
cd "$tmp" || exit 99
PATH=$builddir:$PATH
export XEP_TIMEOUT=30s

# batches as small as they make sense; the last of an option counts
small='--tokens 8 --hidden 64 --iters 2 --warmup 1'

# elsewhere: PATTERN  WHO RUNS IT, OR WHY NOBODY DOES
elsewhere() {
    sed 's/  .*//' <<'END' | paste -sd '|'
^\./(autogen\.sh|configure)  contrib/setup.bash; make install: test/rig/installed.bash
^(pip|python|torchrun) |examples/  python/run-tests, test_loading.py, contrib/check-wheel; test/abi/examples.sh
^\./(hello|moe|program)$|\./(hello|moe)$  test/abi/examples.sh
^cc (-shared|flood)|\./client$  test/abi/outoftree.sh
^contrib/(demo|check)\.sh  CI
^contrib/build-wheel  contrib/check.sh, as its stage "wheel"
^contrib/check-cuda\.sh|memory cuda  contrib/check-cuda.sh: they need a device
^(prterun|mpirun|srun|sbatch)  test/mp/launch/launch_*.sh, with the options of this machine
^xep_plot  python/tests/test_plot.py
^xep_trace  test/mp/perf/trace_output.sh
^make bench  takes minutes on a quiet machine
END
}

# commands: all of the documents, without what explains them
commands() {
    local word='(xep_[a-z]+|cc|pip|python3?|torchrun|make|vllm|prterun|mpirun|srun|sbatch|(\.|contrib)\/[^ ]+)'
    sed -nE "/^\`\`\`/,/^\`\`\`/d; s/^    (((UCX|XEP)_[A-Z_]+=[^ |]+ )*$word( .*|$))/\\1/p" "$srcdir/README.md" \
        "$srcdir"/docs/{tutorial,howto,reference,explanation}/*.md |
        sed -E 's/ +#.*//; s/\/tmp\///; s/ (&&|\|) .*//; s/-n 8\>/-n 4/; s/=1\.\.[0-9]+/=1..2/; s/4096,8/16,8/' |
        grep -v '\\$' | sort -u
}

# what documents call the program of the reader, and what reads its output
printf '#!/bin/sh\nexec xep_perf %s --check-only\n' "$small" >prog
ln -s prog program
chmod +x prog

# a routing for those that name the file "routes": that of a program, by the variables that documents show
XEP_RECORD=$tmp/recorded xep_run -n 4 xep_perf $small --experts 64 --topk 6 >"$tmp/out" 2>&1 ||
    wrong "XEP_RECORD: $(tail -1 "$tmp/out")"
cat recorded.? >routes

count=0
while read -r command; do
    count=$((count + 1))
    [ -z "${XEP_TEST_BRIEF:-}" ] || [ $((count % 3)) -eq 0 ] || continue
    case $command in
    *xep_info* | *./prog*) more= ;;
    *--simulate*) more="--tokens 8" ;;
    *) more=$small ;;
    esac
    timeout -k 5 $((60 * ${XEP_TEST_SLOW:-1})) bash -c "$command $more" >"$tmp/out" 2>&1 </dev/null ||
        { wrong "a document's command: $command (status $?)"; tail -2 "$tmp/out"; }
done < <(commands | grep -vE "$(elsewhere)")
[ $count -ge 20 ] || wrong "only $count commands were found in documents"
