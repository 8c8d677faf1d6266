# SPDX-License-Identifier: BSD-3-Clause
# The tree keeps contrib/check-layers.sh, and every rule of it finds what breaks it, in a copy of the tree.
set -u
tmp=$(mktemp -d) || exit 99
trap 'rm -rf "$tmp"' EXIT
check=$srcdir/contrib/check-layers.sh

bash "$check" "$srcdir" || { echo "the tree breaks the rules above"; exit 1; }
[ -z "${XEP_TEST_BRIEF:-}" ] || exit 0

mkdir "$tmp/tree"
(cd "$srcdir" && find include src plugins tools oracle test contrib python \
    \( -name '*.[ch]' -o -name '*.h.in' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' -o \
    -name '*.sh' -o -name '*.py' -o -path 'test/fuzz/corpus/*/*' \) -print |
    tar cf - -T -) | tar xf - -C "$tmp/tree"
chmod -R u+w "$tmp/tree"
: >"$tmp/expected"

# add FILE LINE: at its end; the file is made if need be
add() {
    mkdir -p "$(dirname "$tmp/tree/$1")"
    [ -f "$tmp/tree/$1" ] || echo '/* SPDX-License-Identifier: BSD-3-Clause */' >"$tmp/tree/$1"
    printf '%s\n' "$2" >>"$tmp/tree/$1"
}

# bad FILE LINE RULE: the line breaks the rule
bad() {
    add "$1" "$2"
    echo "$1:$(wc -l <"$tmp/tree/$1"): $3" >>"$tmp/expected"
}

not_included='direction'
bad src/group/group.c '#include <ucp/api/ucp.h>' "$not_included"
bad src/group/group.c '#include <pmix.h>' "$not_included"
bad src/group/group.c '#include "ucp/ucp_transport.h"' "$not_included"
bad src/group/group.c '#include "../ucp/ucp_transport.h"' "$not_included"
bad src/group/group.c '#include "pmix_boot.h"' "$not_included"
bad src/group/group.c '#  include "../../plugins/normal/normal.h"' "$not_included"
bad src/util/log.c '#include "layout.h"' "$not_included"
bad src/ucp/ucp_new.c '#include "pmix_boot.h"' "$not_included"
bad src/ucp/ucp_new.c '#include <pmix_common.h>' "$not_included"
bad src/pmix/pmix_new.c '#include <ucs/type/status.h>' "$not_included"
bad src/pmix/pmix_new.c '#include <uct/api/uct.h>' "$not_included"
bad src/api/api.c '#include <ucp/api/ucp.h>' "$not_included"
bad include/xep/xep.h '#include <xep/plugin.h>' "$not_included"
bad include/xep/xep.h '#include "wire.h"' "$not_included"
bad include/xep/xep.h '#include "launch.h"' "$not_included"
bad include/xep/xep.h '#include <xep/elastic.h>' "$not_included"
bad include/xep/elastic.h '#include <xep/plugin.h>' "$not_included"
bad include/xep/wire.h '#include "log.h"' "$not_included"
bad tools/info/xep_info.c '#include "config.h"' "$not_included"
bad tools/info/xep_info.c '#include <xep/wire.h>' "$not_included"
bad tools/trace/trace_journal.c '#include "log.h"' "$not_included"
bad tools/perf/xep_perf.c '#include <pmix.h>' "$not_included"
bad tools/perf/xep_perf.c '#include "group.h"' "$not_included"
bad tools/perf/xep_perf.c '#include "codec.h"' "$not_included"
bad plugins/normal/normal.c '#include "log.h"' "$not_included"
bad plugins/normal/normal.c '#include "../../src/util/team.h"' "$not_included"
bad plugins/normal/normal.c '#include <pthread.h>' "$not_included"
bad plugins/other/other.c '#include "../normal/normal.h"' "$not_included"
bad plugins/kit/shared.c '#include "normal.h"' "$not_included"
bad plugins/cuda/cuda_plan.cu '#include "layout.h"' "$not_included"
bad plugins/cuda/cuda_plan.cu '#include <cuda_runtime.h>' "$not_included"
bad plugins/cuda/cuda_words.cuh '#include "group.h"' "$not_included"
bad plugins/cuda/cuda_ll.c '#include <cuda_fp16.h>' "$not_included"
bad python/ext/ext_layout.c '#include "layout.h"' "$not_included"
bad python/ext/ext_layout.c '#include "cuda_layout.h"' "$not_included"
bad python/ext/ext_layout.c '#include <xep/plugin.h>' "$not_included"
bad python/ext/ext_layout.c '#include <ucp/api/ucp.h>' "$not_included"
bad tools/info/xep_info.c '#include <Python.h>' "$not_included"

# closes FILE LINE OTHER TEXT: the line makes a circle of the file and the other, which has the text once
closes() {
    bad "$1" "$2" 'circle of files'
    echo "$3:$(grep -nF "$4" "$srcdir/$3" | cut -d: -f1): circle of files" >>"$tmp/expected"
}
closes src/util/trace_file.h '#include "trace.h"' src/util/trace.h '#include "trace_file.h"'
closes tools/perf/perf_by_hand.c 'static size_t again(void) { return perf_limit_bytes(0); }' \
    tools/perf/perf_by_hand_limit.c 'perf_by_hand_share('
closes tools/run/run_names.c 'static int stop(void) { return run_server_open(0, 0, 0); }' tools/run/run_server.c \
    'run_names_publish,'
closes plugins/kit/send.c 'static int again(void *m) { return xep_step_flush(m, NULL); }' plugins/kit/steps.c \
    'xep_send('
closes plugins/cuda/cuda_mode.c 'static int again(void *m) { return cuda_mode_layout(m, 0, 0); }' \
    plugins/cuda/cuda_layout.c 'cuda_check_arrays('
closes python/ext/ext_view.c 'static int is(PyObject *o) { return ext_device_check(o); }' python/ext/ext_device.c \
    'ext_view_new('
closes python/xep/params.py '    from .group import Group' python/xep/group.py 'from .params import BufferInfo'
closes python/deep_ep/handles.py '    from .core import Pool' python/deep_ep/core.py 'from .handles import'
bad src/request/request.c 'static void drop(xep_handle_t *h) { xep_handle_release(h); }' 'api.c is on top'
bad src/api/api_check.c 'static void stop(xep_group_t *g) { xep_group_abort(g); }' 'api.c is on top'
bad src/util/dtype.c 'static xep_status_t lay(void) { return xep_layout(0, 0); }' 'api.c is on top'
bad src/util/log.h 'unsigned xep_cpu_count(void);' 'a header declares what its .c defines'
bad tools/run/run_watch.h 'void run_say(void);' 'a header declares what its .c defines'
bad oracle/oracle_routing.h 'uint64_t oracle_hash_row(void);' 'a header declares what its .c defines'
bad src/ucp/ucp_objects.h 'void xep_ucp_lock_twice(void);' 'a header declares what its .c defines'

bad plugins/cuda/cuda_plan.cu 'static __device__ int plans;' 'a mode has no mutable globals'
bad plugins/cuda/cuda_plan.cu 'static void p(void) { printf("x"); }' 'a mode does not call this'
bad plugins/normal/normal.c 'static const char *v(void) { return getenv("X"); }' 'a mode does not call this'
bad plugins/normal/normal.c 'static void p(void) { fprintf(0, "x"); }' 'a mode does not call this'
bad plugins/normal/normal.c 'static int calls;' 'a mode has no mutable globals'
bad plugins/normal/normal.c '    static int calls = 0;' 'a mode has no mutable globals'
bad plugins/normal/normal.c 'extern struct state shared_state;' 'a mode has no mutable globals'
bad src/ucp/ucp_new.c '/* one per Expert */' 'the transport does not know this word'
bad src/ucp/ucp_new.c 'int ntokens;' 'the transport does not know this word'
bad src/ucp/ucp_new.c 'int topk;' 'the transport does not know this word'
bad src/group/group.c 'struct peer { void *ep; };' 'no variable is called ep'
bad python/ext/ext_layout.c 'static int ep;' 'no variable is called ep'
bad src/ucp/ucp_new.c 'void close_peer(struct peer *p) { close(p->ep); }' 'no variable is called ep'

null='a pointer is compared with NULL'
bad plugins/ll/ll_new.c 'static int f(char *p) { if (!p) return 1;' "$null"
bad plugins/ll/ll_new.c 'while (p) p = q->next;' "$null"
bad plugins/ll/ll_new.c 'if (n && p) return 1;' "$null"
bad plugins/normal/normal_new.c 'static int g(void) { return !state->pieces_kept || n;' "$null"
add plugins/normal/normal_new.h '    char *pieces_kept;'

# no violations
add plugins/ll/ll_new.c 'if (p == NULL || !*p || !p[0] || !n || !f(p)) return 1;'
add src/group/group.c '/* #include <pmix.h>; ep is an endpoint */'
add src/group/group.c 'static const char text[] = "ep, getenv(";'
add src/ucp/ucp_new.c '#include <ucp/api/ucp.h>'
add tools/run/run_new.c '#include <pmix_server.h>'
add src/api/api.c '#include "ucp/ucp_transport.h"'
add plugins/normal/normal.c '#include "copy.h"'
add plugins/normal/normal.c '#include <immintrin.h>'
add plugins/cuda/cuda_plan.cu '#include <cuda_bf16.h>'
add python/ext/ext_layout.c '#include <Python.h>'
add plugins/normal/normal.c 'static const int table[] = {1};'
add plugins/normal/normal.c '__attribute__((format(printf, 2, 3)))'

bad src/group/group_fresh.c '' 'no SPDX line'
sed -i '1d; $d' "$tmp/tree/src/group/group_fresh.c"
sed -i 's|group_fresh.c:[0-9]*|group_fresh.c:1|' "$tmp/expected"
bad test/unit/other.c '' 'basename is taken'
sed -i 's|test/unit/other.c:[0-9]*|test/unit/other.c:1|' "$tmp/expected"

add test/fuzz/fuzz_new.c 'int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);'
echo "test/fuzz/fuzz_new.c:1: a fuzz target has a corpus" >>"$tmp/expected"
mkdir -p "$tmp/tree/test/fuzz/corpus/nothing"
head -c 4097 /dev/zero >"$tmp/tree/test/fuzz/corpus/nothing/large"
for _ in target size; do echo "test/fuzz/corpus/nothing/large:1: an input of a corpus" >>"$tmp/expected"; done

bash "$check" "$tmp/tree" >"$tmp/out"
status=$?
[ $status -eq 1 ] || { echo "status $status with violations"; exit 1; }
sed 's/^\([^ ]*:[0-9]*: [^:]*\):.*/\1/' "$tmp/out" | sort >"$tmp/found"
sort "$tmp/expected" | diff - "$tmp/found" || { echo "not as expected: < not found, > found without reason"; exit 1; }
