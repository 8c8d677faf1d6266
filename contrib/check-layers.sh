#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# The directions of the tree: who may include whom, circles of files, headers that declare what another file defines,
# words and names that have no place where they are, pointers that are not compared with NULL, and fuzz targets
# without a corpus.
# Prints "file:line: rule: what" for each violation, and exits 1 when there is one.
#
#     contrib/check-layers.sh [ROOT]
set -u
cd "${1:-$(dirname "$0")/..}" || exit 2
export LC_ALL=C
tmp=$(mktemp -d) || exit 2
trap 'rm -rf "$tmp"' EXIT
found=$tmp/found
includes=$tmp/includes
shipped='include src plugins tools oracle python/ext' # all but the tests

sources() {
    find "$@" -type f \( -name '*.c' -o -name '*.h' -o -name '*.h.in' -o -name '*.cpp' -o -name '*.cu' -o \
        -name '*.cuh' \) 2>/dev/null | sort
}

# file:line:text of the code alone: comments and the insides of strings are blanked, names of included files are not
strip() {
    sources "$@" | xargs awk '
        FNR == 1 { inside = 0 }
        {
            line = $0; out = ""
            while (line != "") {
                if (inside) {
                    end = index(line, "*/")
                    if (end == 0) break
                    line = substr(line, end + 2); inside = 0
                } else if (match(line, /\/\*|\/\/|"([^"\\]|\\.)*"|\047([^\047\\]|\\.)*\047/)) {
                    what = substr(line, RSTART, 2)
                    out = out substr(line, 1, RSTART - 1)
                    if (what == "//") break
                    if (what == "/*") { inside = 1; line = substr(line, RSTART + 2); continue }
                    out = out (out ~ /^[ \t]*#[ \t]*include/ ? substr(line, RSTART, RLENGTH) : "\"\"")
                    line = substr(line, RSTART + RLENGTH)
                } else { out = out line; break }
            }
            if (out ~ /[^ \t]/) print FILENAME ":" FNR ":" out
        }'
}

# code FOLDER...: of the files there
code() {
    for folder; do grep "^$folder/" "$tmp/code"; done
}

# report RULE: lines "file:line:text" of stdin are violations of it
report() {
    sed "s|^\([^:]*:[0-9]*\):[ \t]*|\1: $1: |" >>"$found"
}

# ---- includes ----

# "file:line folder-of-the-included included" for every include; the folder is "system" for what is not in the tree.
# Basenames are unique, so a basename tells the folder.
includes() {
    { sources $shipped | sed 's/^/H /; s/\.in$//'
      code $shipped | grep -E '^[^:]*:[0-9]*:[ ]*#[ ]*include' | sed 's/^/I /'; } | awk '
        $1 == "H" {
            n = split($2, part, "/"); base = part[n]
            folder[base] = substr($2, 1, length($2) - length(base) - 1)
            next
        }
        {
            split($2, at, ":"); text = $0
            sub(/.*#[ ]*include[ ]*[<"]/, "", text); sub(/[>"].*/, "", text)
            n = split(text, part, "/")
            where = (part[n] in folder) ? folder[part[n]] : "system"
            # a name of ours in another project: <foo/log.h>
            if (where != "system" && n > 1 && index(where "/" part[n], text) == 0 && text !~ /^\.\./) where = "system"
            print at[1] ":" at[2], where, text
        }'
}

# may FOLDERS-REGEX ALLOWED-REGEX: files there include from allowed folders only
may() {
    awk -v from="^($1)/[^/]*$" -v allowed="^($2|system)$" '
        { file = $1; sub(/:.*/, "", file) }
        file ~ from && $2 !~ allowed { print $1 ":" $3 " of " $2 }' "$includes" | report direction
}

# only INCLUDED-REGEX FILES-REGEX: what matches, of other projects, is included by these files alone
only() {
    awk -v what="^($1)$" -v allowed="^($2)" '
        { file = $1; sub(/:.*/, "", file) }
        $2 == "system" && $3 ~ what && file !~ allowed { print $1 ":" $3 }' "$includes" | report direction
}

# a mode for device memory shares what its sibling for host memory is made of
shared_with() {
    [ "$1" != plugins/cuda/ ] || echo '|plugins/normal|plugins/ll'
}

check_includes() {
    local folder also below='src/report|src/cost|src/util'
    local core='src/group|src/buffer|src/balance|src/request|src/staging|src/elastic'
    includes >"$includes"
    may 'include/xep' 'include/xep'
    may 'src/util' 'src/util|include/xep'
    for folder in cost report; do may "src/$folder" "src/$folder|src/util|include/xep"; done
    may 'src/group' "src/group|$below|include/xep"
    may 'src/weights' 'src/weights|src/buffer|src/group|src/report|src/util|include/xep'
    for folder in buffer balance request staging elastic; do may "src/$folder" "$core|$below|include/xep"; done
    for folder in ucp pmix cuda; do may "src/$folder" "src/$folder|$core|$below|include/xep"; done
    may 'src/api' "src/api|src/ucp|src/pmix|src/cuda|src/weights|$core|$below|include/xep"
    may 'src/serve' "src/serve|src/api|$core|$below|include/xep"
    for folder in tools/*/; do
        case $folder in
        tools/run/) also='|tools/trace' ;;
        tools/trace/) also='|src/util' ;;
        tools/info/) also='|src/report' ;;
        tools/perf/) also='|src/cost|src/balance|plugins/kernels' ;;
        *) also= ;;
        esac
        may "${folder%/}" "${folder%/}|oracle|include/xep$also"
    done
    # the layout of a rank's trace, and nothing else, is the library's and the tool's
    awk '$1 ~ /^tools\/trace\// && $2 == "src/util" && $3 !~ /^trace_file\.h$/ { print $1 ":" $3 }' "$includes" |
        report direction
    # so is the layout of a process's counters
    awk '$1 ~ /^tools\/info\// && $2 == "src/report" && $3 !~ /^counts\.h$/ { print $1 ":" $3 }' "$includes" |
        report direction
    # the limit and the modes have the same copies, sums and casts, and the tool nothing else of the modes
    awk '$1 ~ /^tools\/perf\// && $2 == "plugins/kernels" && $3 !~ /^(copy|weigh|cast)\.h$/ { print $1 ":" $3 }' \
        "$includes" | report direction
    may 'oracle' 'oracle|include/xep'
    may 'python/ext' 'python/ext|include/xep'
    for folder in plugins/*/; do
        may "${folder%/}" "${folder%/}|plugins/kit|plugins/kernels|include/xep$(shared_with "$folder")"
    done
    only '(ucp|uct|ucs|ucm)/.*' 'src/ucp/'
    only 'pmix.*\.h' 'src/pmix/|tools/run/'
    only 'Python\.h|structmember\.h|numpy/.*' 'python/ext/'
    only 'cuda_(bf16|fp16)\.h' 'plugins/cuda/[^:]*\.cuh?$'
    awk '$1 ~ /^include\/xep\/(xep|dtype|status|cuda|elastic|inspect|pieces)\.h:/ && $3 ~ /(plugin|launch|wire)\.h$/ {
             print $1 ":" $3 }
         $1 ~ /^include\/xep\/xep\.h:/ && $3 ~ /(cuda|elastic|inspect|pieces)\.h$/ { print $1 ":" $3 }
         $1 ~ /^(tools|oracle|python)\// && $3 ~ /xep\/(plugin|launch|wire)\.h$/ { print $1 ":" $3 }' "$includes" |
        report direction
    # a mode has the C library's memory, strings and numbers, and vector instructions
    awk '$1 ~ /^plugins\// && $2 == "system" &&
         $3 !~ /^(assert|errno|float|inttypes|limits|math|std[a-z]*|string|immintrin|arm_neon|arm_sve|sys\/mman)\.h$/ &&
         $3 !~ /^cuda_(bf16|fp16)\.h$/ {
             print $1 ":" $3 }' "$includes" | report direction
}

# ---- files of a folder ----

# Of awk: edges of a graph, each with the line where it stands, and those that are part of a circle.
graph='
    function depend(from, to, at) {
        if (from == to || (from, to) in where) return
        where[from, to] = at
        next_of[from] = next_of[from] " " to
    }
    function visit(from, top,   list, n, i) {
        n = split(next_of[from], list, " ")
        for (i = 1; i <= n; i++) {
            if ((top, list[i]) in reached) continue
            reached[top, list[i]] = 1
            visit(list[i], top)
        }
    }
    function tell_circles(kind,   file, edge, end) {
        for (file in next_of) visit(file, file)
        for (edge in where) {
            split(edge, end, SUBSEP)
            if ((end[2], end[1]) in reached) print kind where[edge] ": " end[1] " -> " end[2]
        }
    }'

# depends FOLDER PREFIX: lines "circle file:line a -> b", "header file:line name" and "below file:line name" of the
# files there, whose functions and tables begin with the prefix. A .c file depends on those whose functions or tables it
# names, a header on the headers that it includes. object.h declares what object.c and the object_*.c beside it define;
# a hidden table of it that another file defines, as a mode does its traits, is a hook: who names it depends on no mode.
depends() {
    code "$1" | awk -v prefix="$2" "$graph"'
        function stem(path) { sub(/\.[ch]$/, "", path); return path }
        function declares(header, file) {
            header = stem(header); file = stem(file)
            return file == header || index(file, header "_") == 1
        }
        function is_hook(name) { return (name in hidden) && !declares(hidden[name], owner[name]) }
        BEGIN { ours = prefix "_[a-z0-9_]+" }
        {
            file = $0; sub(/:.*/, "", file); rest = substr($0, length(file) + 2)
            line = rest; sub(/:.*/, "", line); text = substr(rest, length(line) + 2)
            n++
            at[n] = file ":" line
            of[n] = file
            code[n] = text
            base = file; sub(/.*\//, "", base)
            folder[base] = file
            top_level = text ~ /^[A-Za-z_]/ && text !~ /^(static|typedef|struct|enum|extern "C")/
            if (file ~ /\.h$/ && text ~ /visibility.*extern const/ && match(text, ours ";")) {
                hidden[substr(text, RSTART, RLENGTH - 1)] = file
                next
            }
            if (!top_level || !match(text, ours "( = |\\()")) next
            name = substr(text, RSTART, RLENGTH); sub(/( = |\()$/, "", name)
            if (file ~ /\.c$/) owner[name] = file
            else if (text !~ /\(\*/) declared[name] = n
        }
        END {
            for (i = 1; i <= n; i++) {
                text = code[i]; from = of[i]
                if (text ~ /^[ ]*#[ ]*include[ ]*"/) {
                    sub(/^[^"]*"/, "", text); sub(/".*/, "", text); sub(/.*\//, "", text)
                    if (text in folder && from ~ /\.h$/) depend(from, folder[text], at[i])
                    continue
                }
                gsub("(struct|enum) " ours, "", text)
                while (match(text, ours)) {
                    name = substr(text, RSTART, RLENGTH); text = substr(text, RSTART + RLENGTH)
                    if (!(name in owner) || from ~ /\.h$/) continue
                    if (is_hook(name)) continue
                    top = owner[name] ~ /^src\/api\/api(_group|_layout|_operations|_requests|_rows)?\.c$/
                    if (!top || from == owner[name])
                        depend(from, owner[name], at[i])
                    else print "below", at[i] ": " name
                }
            }
            for (name in declared) {
                i = declared[name]
                if (!(name in owner)) print "header", at[i] ": " name ", defined nowhere"
                else if (!declares(of[i], owner[name])) print "header", at[i] ": " name " of " owner[name]
            }
            tell_circles("circle ")
        }'
}

# imports PACKAGE: lines "file:line a -> b" of the circles among the modules of a package of Python. Imports for types
# alone count, too: two modules that know one another are one.
imports() {
    grep -nE '^[ ]*from \.[a-z_.]* import ' $(find "$1" -name '*.py' | sort) /dev/null | awk "$graph"'
        {
            split($0, part, ":"); from = part[1]; sub(/\.py$/, "", from)
            folder = from; sub(/\/[^\/]*$/, "", folder)
            text = $0; sub(/^[^:]*:[^:]*:[ ]*from \./, "", text)
            name = text; sub(/ import .*/, "", name); gsub(/\./, "/", name)
            if (name != "") { depend(from, folder "/" name, part[1] ":" part[2]); next }
            sub(/.* import /, "", text); sub(/#.*/, "", text)
            n = split(text, list, /[ ,]+/)
            for (i = 1; i <= n; i++) depend(from, folder "/" list[i], part[1] ":" part[2])
        }
        END {
            tell_circles("")
        }'
}

# Folders without circles, each with how the names of its functions begin, and packages of Python.
without_circles='plugins/kernels:xep plugins/kit:xep plugins/normal:normal plugins/ll:ll plugins/cuda:cuda'
without_circles+=' python/ext:ext oracle:oracle tools/perf:perf tools/run:run tools/trace:trace'
packages_without_circles='python/deep_ep python/xep'

check_rooms() {
    local folder package
    for folder in src:xep $without_circles; do depends "${folder%:*}" "${folder#*:}"; done >"$tmp/depends"
    # a rank that serves calls what programs call
    sed -n 's/^below //p' "$tmp/depends" | grep -v '^src/serve/' | sort -u | report 'api.c is on top'
    grep -E '^header (src|oracle|tools)/' "$tmp/depends" | sed 's/^header //' | sort |
        report 'a header declares what its .c defines'
    { sed -n 's/^circle //p' "$tmp/depends"
      for package in $packages_without_circles; do [ ! -d "$package" ] || imports "$package"; done; } |
        sort | report 'circle of files'
}

# ---- what is said and done where ----

check_plugins() {
    local calls='(secure_)?getenv|setenv|v?f?printf|v?dprintf|puts|fputs|putchar|perror|fopen|fwrite|abort|_?exit|fork'
    calls="$calls|system|signal|sigaction|u?sleep|nanosleep|pthread_[a-z_]*|thrd_[a-z]*|dlopen|dlsym"
    code plugins | grep -E "\\<($calls)[ ]*\\(" |
        report 'a mode does not call this'
    code plugins | grep -E ':[ ]*(extern|static|_Thread_local)( [^(]*)?[;=,]|:[ ]*static [^(]*[;=[]' |
        grep -vE '\<(const|constexpr|inline|__shared__)\>|_Static_assert' | report 'a mode has no mutable globals'
}

check_words() {
    grep -niE 'token|expert|top_?k' $(sources src/ucp) /dev/null | report 'the transport does not know this word'
    code $shipped test | grep -E '\<ep\>' | report 'no variable is called ep'
}

# A pointer is compared with NULL, and not taken as true or false. What is a pointer is known from declarations: of a
# name in the same file, of a member in a header.
check_nulls() {
    awk '
        function file_of(line) { sub(/:.*/, "", line); return line }
        function text_of(line) { sub(/^[^:]*:[0-9]*:/, "", line); return line }
        # a name of a file, or a member of a struct in a header; one that is also declared as something else is neither
        function note(table, key, kind) {
            if (!(key in table)) table[key] = kind
            else if (table[key] != kind) table[key] = "both"
        }
        function declare(file, name, kind) {
            note(names, file SUBSEP name, kind)
            if (file ~ /[.]h(.in)?$/) note(members, name, kind)
        }
        function is_pointer(file, chain,   n, part) {
            n = split(chain, part, /->|\./)
            if (n == 1) return names[file, chain] == "pointer"
            return members[part[n]] == "pointer" && names[file, part[n]] !~ /other|both/
        }
        FNR == NR {
            file = file_of($0); text = text_of($0)
            while (match(text, /[A-Za-z0-9_]+ \**(const )?[a-z_][a-z0-9_]*( =|(,|;|[)]|:|\[)|$)/)) {
                what = substr(text, RSTART, RLENGTH)
                text = substr(text, RSTART + RLENGTH - 1)
                type = what; sub(/ .*/, "", type)
                if (type ~ /^(return|else|case|goto|sizeof)$/) continue
                kind = what ~ / \*/ ? "pointer" : "other"
                name = what; sub(/( =|(,|;|[)]|:|\[))$/, "", name); sub(/.*[ *]/, "", name)
                declare(file, name, kind)
                # int a, *b
                while (match(text, /^, \**[a-z_][a-z0-9_]*( =|,|;)/)) {
                    name = substr(text, 3, RLENGTH - 2)
                    text = substr(text, RLENGTH)
                    kind = name ~ /^\*/ ? "pointer" : "other"
                    gsub(/[*=,; ]/, "", name)
                    declare(file, name, kind)
                }
            }
            next
        }
        {
            file = file_of($0); text = text_of($0)
            chain = "[a-z_][a-z0-9_]*((->|\\.)[a-z_][a-z0-9_]*)*"
            while (match(text, "(!|(if|while) \\(|&& |\\|\\| )" chain "( &&| \\|\\||\\)|;| \\?)")) {
                what = substr(text, RSTART, RLENGTH)
                text = substr(text, RSTART + 1)
                name = what; sub(/^(!|(if|while) \(|&& |\|\| )/, "", name); sub(/( &&| \|\||\)|;| \?)$/, "", name)
                if (is_pointer(file, name)) { print $0; break }
            }
        }' "$tmp/code" "$tmp/code" | report 'a pointer is compared with NULL'
}

check_files() {
    find include src plugins tools oracle test contrib python -type f \( -name '*.[ch]' -o -name '*.h.in' -o \
        -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' -o -name '*.sh' -o -name '*.py' \) 2>/dev/null |
        sort >"$tmp/files"
    # a module of Python has the name of its package before its own
    grep -v '\.py$' "$tmp/files" | sed 's|.*/||' | sort | uniq -d | while read -r base; do
        grep "/$base\$" "$tmp/files" | tail -n +2 | sed "s/\$/:1:$base/"
    done | report 'basename is taken'
    while read -r file; do
        head -4 "$file" | grep -q 'SPDX-License-Identifier: BSD-3-Clause' || echo "$file:1:first lines"
    done <"$tmp/files" | report 'no SPDX line'
}

# A target of test/fuzz without a corpus has nothing to begin with, and contrib/fuzz runs those alone that it knows.
# Inputs are small, so that they can be read.
check_corpora() {
    for file in $(grep -l '^int LLVMFuzzerTestOneInput' test/fuzz/fuzz_*.c 2>/dev/null); do
        name=${file##*/fuzz_} name=${name%.c}
        [ -n "$(ls "test/fuzz/corpus/$name" 2>/dev/null)" ] || echo "$file:1:no test/fuzz/corpus/$name"
        [ ! -e contrib/fuzz ] || grep -qF "[$name]=" contrib/fuzz || echo "$file:1:not in contrib/fuzz"
    done | report 'a fuzz target has a corpus'
    [ ! -d test/fuzz/corpus ] || find test/fuzz/corpus -type f | sort | while read -r file; do
        name=${file#test/fuzz/corpus/} name=${name%%/*}
        [ -e "test/fuzz/fuzz_$name.c" ] || echo "$file:1:no target $name"
        [ "$(stat -c %s "$file")" -le 4096 ] || echo "$file:1:more than 4096 bytes"
    done | report 'an input of a corpus'
}

strip $shipped test >"$tmp/code"
check_includes
check_rooms
check_plugins
check_words
check_nulls
check_files
check_corpora
cat "$found"
[ ! -s "$found" ]
