#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# The documents and the tree say the same: paths, names, links, variables, public functions and the options of
# the tools. Prints "file:line: rule: what" for each violation, and exits 1 when there is one.
#
#     contrib/check-documents.sh [ROOT]
set -u
cd "${1:-$(dirname "$0")/..}" || exit 2
export LC_ALL=C
tmp=$(mktemp -d) || exit 2
trap 'rm -rf "$tmp"' EXIT
found=$tmp/found
pages="README.md ARCHITECTURE.md CONTRIBUTING.md $(echo docs/*.md docs/*/*.md)"
folders='src|include|plugins|tools|oracle|test|python|examples|contrib|docs|man|\.ci'

# report RULE: lines "file:line:text" of stdin are violations of it
report() {
    sed "s|^\([^:]*:[0-9]*\):|\1: $1: |" >>"$found"
}

# every match of an expression in the pages and NEWS, as file:line:match
mentions() {
    grep -noE "$1" $pages NEWS /dev/null
}

check_paths() {
    mentions "(^|[^A-Za-z0-9_/.<-])($folders)/[A-Za-z0-9_./*-]*[A-Za-z0-9*/]" |
        sed 's|^\([^:]*:[0-9]*:\)[^A-Za-z.]|\1|' | while IFS=: read -r file line path; do
        # what a build makes of a source has its name without, or with another, suffix
        compgen -G "$path" >/dev/null || [ -e "$path.c" ] || [ -e "${path%.*}.c" ] || echo "$file:$line:$path"
    done | report 'no such path'

    find $(tr '|' ' ' <<<"${folders/\\/}") . -maxdepth 3 -type f | sed 's|.*/||' >"$tmp/files"
    mentions '`[a-z0-9_-]+\.(c|h|sh|py|bash|md|mk|map)`' | tr -d '`' | while IFS=: read -r file line name; do
        grep -qxF "$name" "$tmp/files" || echo "$file:$line:$name"
    done | report 'no such file'
}

# Words with an underscore are names of something: they occur in the tree outside the documents (the title of a manual
# page is in capitals, a variable of UCX is set without its prefix, and names of MPI are its own).
check_names() {
    local word='[A-Za-z][A-Za-z0-9]*(_[A-Za-z0-9]+)+'
    grep -rhoE --include='*.[ch]' --include='*.in' --include='*.sh' --include='*.bash' --include='*.py' \
        --include='run-test*' --include='*.mk' --include='configure*' "$word" \
        include src plugins tools oracle test python examples contrib | sort -u >"$tmp/words"
    grep -oE "$word" Makefile.am configure.ac -h | sort -u >>"$tmp/words"
    grep -noE "$word(_\*|\*|_<)?" $pages man/*.1 | grep -v '^man/.*:3:' | while IFS=: read -r file line name; do
        case $name in
        MPI_*) ;;
        *[*\<]) grep -q "^${name%%[*<]*}" "$tmp/words" ;;
        *) grep -qxF -e "$name" -e "${name#UCX_}" "$tmp/words" ;;
        esac || echo "$file:$line:$name"
    done | report 'no such name in the tree'
}

# slug: of the heading on stdin, as web sites make it
slug() {
    sed 's/^#* *//' | tr 'A-Z' 'a-z' | sed 's/[^a-z0-9 _-]//g; s/ /-/g'
}

# "function()   file" at the start of a line of the map: it is there
check_places() {
    grep -nE '^ *[a-z_]+\(\) +[a-z/_]+\.[ch] ' ARCHITECTURE.md | tr -s ' ' | while IFS=: read -r line text; do
        read -r name file _ <<<"$text"
        grep -q "\<${name%()}(" "$file" 2>/dev/null || echo "ARCHITECTURE.md:$line:$name is not in $file"
    done | report 'not in its place'
}

check_links() {
    grep -noE '\]\([^)]*\)' $pages | sed 's/\](\(.*\))$/\1/' | while IFS=: read -r file line target; do
        case $target in http:* | https:*) continue ;; esac
        path=${target%%#*}
        [ -z "$path" ] && path=$file || path=$(dirname "$file")/$path
        [ -e "$path" ] || { echo "$file:$line:$target"; continue; }
        case $target in *'#'*) grep '^#' "$path" | slug | grep -qxF "${target#*#}" || echo "$file:$line:$target" ;; esac
    done | report 'a link that leads nowhere'
    for page in docs/*/*.md; do
        grep -qF "(${page#docs/})" docs/index.md || echo "$page:1:docs/index.md does not link to it"
    done | report 'a page nobody finds'
}

# "NAME default" for each variable of config_defs.h
variables() {
    tr '\n' ' ' <src/util/config_defs.h | grep -oE '(VALUE|CHOICE)\( *[a-z_]*, *"[A-Z_]*",( [a-z]*,)? *"[^"]*"' |
        sed 's/^[A-Z]*( *[a-z_]*, *"\([A-Z_]*\)",.*"\([^"]*\)"$/XEP_\1 \2/'
}

check_variables() {
    local page=docs/reference/configuration.md
    variables >"$tmp/variables"
    [ -s "$tmp/variables" ] || echo "src/util/config_defs.h:1:cannot be read by this script" | report 'variables'
    while read -r name default; do
        line=$(grep -n "^\* \`$name\` (" $page) || { echo "$page:1:$name"; continue; }
        case ${line#*:} in
        *"\` (\`$default\`)"*) ;;
        *"\` (empty)"*) [ -z "$default" ] || echo "$page:${line%%:*}:$name: the default is $default" ;;
        *) echo "$page:${line%%:*}:$name: the default is ${default:-empty}" ;;
        esac
    done <"$tmp/variables" | report 'a variable that is not described'
    # all others of the library are in the table; these belong to the packages of Python, xep_run and the tests
    grep -noE '`XEP_[A-Z_]*[A-Z]`' $page | tr -d '`' |
        grep -vE ':XEP_(LIBRARY|SGLANG|UNTESTED|VLLM|RUN_[A-Z_]*|TEST_[A-Z_]*)$' |
        while IFS=: read -r line name; do
            grep -q "^$name " "$tmp/variables" || echo "$page:$line:$name"
        done | report 'no such variable'
}

# A declaration has a comment, or follows one that has without an empty line between them.
check_functions() {
    awk '
        /^$/ { commented = 0 }
        /^( \*|\/\*).*\/$/ && /\*\/$/ { commented = 1 }
        /^XEP_API / { match($0, /xep_[a-z0-9_]*\(/);
                      print substr($0, RSTART, RLENGTH - 1), FILENAME ":" FNR, commented }
    ' include/xep/*.h >"$tmp/declared"
    grep -oE '\<xep_[a-z0-9_]+\>;' src/xep.map | tr -d ';' | while read -r name; do
        read -r _ line commented < <(grep "^$name " "$tmp/declared") ||
            { echo "src/xep.map:1:$name: in no header"; continue; }
        [ "$commented" = 1 ] || echo "$line:$name: no comment"
    done | report 'a public function'
}

check_folders() {
    for folder in src/*/ plugins/*/ tools/*/ oracle/ python/*/; do
        case $folder in python/build/ | *.egg-info/ | */__pycache__/) continue ;; esac
        grep -qF "${folder%/}" ARCHITECTURE.md || echo "ARCHITECTURE.md:1:${folder%/}"
    done | report 'a folder that is not on the map'
}

# options of a tool as "-x" or "--word", one a line: of the text or the table in its source that --help prints, so that
# no build is asked that may be older than the pages
options_of_help() {
    { sed -n 's/^ *"\(  -.*\)/\1/p' tools/"${1#xep_}"/*.c; sed -n 's/^ *{"\(--.*\)/  \1/p' tools/"${1#xep_}"/*.c; } |
        grep -oE '^  -(-[a-z][a-z-]*|[A-Za-z])(, --[a-z-]+)?' | tr -d ' ' | tr ',' '\n' | sort -u
}

options_of_page() {
    sed -n 's/^\.It Fl //p' "man/$1.1" | sed 's/, Fl/\n/g' | awk '{ print "-" $1 }' | sort -u
}

check_options() {
    for tool in xep_run xep_perf xep_info xep_trace; do
        options_of_help $tool >"$tmp/help"
        [ -s "$tmp/help" ] || echo "tools/${tool#xep_}:1:no options of $tool found" | report 'an option'
        options_of_page $tool >"$tmp/page"
        comm -23 "$tmp/help" "$tmp/page" | sed "s|^|man/$tool.1:1:not described: |" | report 'an option'
        comm -13 "$tmp/help" "$tmp/page" | sed "s|^|man/$tool.1:1:does not exist: |" | report 'an option'
    done
    options_of_help xep_perf >"$tmp/help"
    grep -nE 'xep_perf .*--' $pages | grep -v '`' | while IFS=: read -r file line text; do
        text=${text#*xep_perf }
        grep -oE -- '--[a-z][a-z-]*' <<<"${text%%#*}" | grep -vxFf "$tmp/help" | sed "s|^|$file:$line:xep_perf |"
    done | report 'an option'
}

# The block of code behind "<!-- example: FILE -->" is that file, but for the comment that the file begins with.
check_examples() {
    mentions '<!-- example: [^ ]*' | sed 's/<!-- example: //' | while IFS=: read -r page line file; do
        sed -n "$((line + 1)),\$p" "$page" | awk '/^```/ { if (n++) exit; next } { print }' >"$tmp/shown"
        [ -s "$tmp/shown" ] && tail -n "$(wc -l <"$tmp/shown")" "$file" | cmp -s - "$tmp/shown" ||
            echo "$page:$line:$file"
    done | report 'not the example that it names'
}

# configure.ac has the version; what else has to name it, for tools that read files, names the same.
check_versions() {
    local version
    version=$(sed -n 's/^m4_define(\[xep_\(major\|minor\|patch\)\], \[\(.*\)\])$/\2/p' configure.ac | paste -sd .)
    while read -r file pattern; do
        grep -nm1 "${pattern//VERSION/.*}" "$file" /dev/null || echo "$file:1:none"
        grep -q "${pattern//VERSION/${version//./\\.}}" "$file" || echo "$file"
    done <<'END' | awk '/^[^:]*$/ { print named }; { named = $0 }' | report 'not the version of configure.ac'
NEWS ^VERSION (20..-..-..)$
debian/changelog ^xep (VERSION)
python/pyproject.toml ^version = "VERSION"
python/packages/deep_ep/pyproject.toml ^version = "VERSION"
python/packages/deep_ep/pyproject.toml ^dependencies = \["xep-moe==VERSION",
contrib/packaging/conda/meta.yaml set version = "VERSION"
contrib/packaging/spack/xep/package.py version("VERSION")
END
}

check_paths
check_names
check_examples
check_versions
check_places
check_links
check_variables
check_functions
check_folders
check_options
if [ -s "$found" ]; then
    sort -u "$found"
    exit 1
fi
