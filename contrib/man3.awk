# SPDX-License-Identifier: BSD-3-Clause
#
# Makes the pages of section 3 of the manual from public headers: a page for each function, struct, enum and type of a
# function, and xep.3, which has the rules of xep.h and lists all. Pages are mdoc, for man and mandoc.
#
#     awk -v out=FOLDER -f contrib/man3.awk include/xep/*.h
#
# It takes what the headers have: "/** ... */" before a declaration is its text; declarations that follow one another
# without an empty line share it; "Bits of TYPE.field" before an enum puts that enum on the page of TYPE.

function fail(what) { print FILENAME ":" FNR ": " what >"/dev/stderr"; failed = 1; exit 1 }

# ---- text ----

# a line of text as mdoc has it: no escapes, no requests
function plain(line) {
    gsub(/\\/, "\\e", line)
    sub(/ +$/, "", line)
    if (line ~ /^[.']/) line = "\\&" line
    return line
}

# each sentence on a line of its own, as mdoc wants it
function put_sentences(page, line) {
    while (match(line, /[.?!][)"]* +[A-Z(]/)) {
        print plain(substr(line, 1, RSTART + RLENGTH - 2)) >page
        line = substr(line, RSTART + RLENGTH - 1)
    }
    print plain(line) >page
}

# paragraphs; items that begin with "-"; what is indented further stands as it is
function put_text(page, text,    lines, n, i, line, literal, list) {
    n = split(text, lines, "\n")
    for (i = 1; i <= n; i++) {
        line = lines[i]
        if (line ~ /^   ? ?[^ ]/ && !list && !literal) { print ".Bd -literal" >page; literal = 1 }
        if (literal && line !~ /^  /) { print ".Ed" >page; literal = 0 }
        if (literal) { print plain(line) >page; continue }
        if (line ~ /^ ?- /) {
            if (!list) print ".Bl -dash" >page
            list = 1
            print ".It" >page
            sub(/^ ?- /, "", line)
        } else if (list && line !~ /^  /) { print ".El" >page; list = 0 }
        sub(/^ +/, "", line)
        if (line != "") put_sentences(page, line)
        else if (i < n && lines[i + 1] !~ /^ ?[ -]/) print ".Pp" >page
    }
    if (literal) print ".Ed" >page
    if (list) print ".El" >page
}

function put_code(page, code,    lines, n, i) {
    print ".Bd -literal" >page
    n = split(code, lines, "\n")
    for (i = 1; i <= n; i++) print plain(lines[i]) >page
    print ".Ed" >page
}

# what NAME has: the first sentence, as a phrase
function brief(text) {
    sub(/\n\n.*/, "", text)
    sub(/^xep: /, "", text)
    gsub(/\n */, " ", text)
    sub(/\. .*/, "", text)
    sub(/[.:]$/, "", text)
    return text == "" ? "a type of xep" : tolower(substr(text, 1, 1)) substr(text, 2)
}

# ---- pages ----

function begin_page(name, of,    page) {
    page = out "/" name ".3"
    print ".\\\" made from " header[of] " by contrib/man3.awk" >page
    print ".Dd November 27, 2026\n.Dt " toupper(name) " 3\n.Os" >page
    print ".Sh NAME\n.Nm " name "\n.Nd " plain(brief(text[of])) >page
    print ".Sh SYNOPSIS\n.In " header[of] >page
    return page
}

# the other pages that a page's code names, by name
function put_links(page, name, code,    words, n, i, j, seen, found, other) {
    seen[name] = 1
    n = split(code, words, /[^a-z0-9_]+/)
    found = 0
    for (i = 1; i <= n; i++) {
        other = words[i]
        if (!(other in kind) || other in seen) continue
        seen[other] = 1
        for (j = ++found; j > 1 && links[j - 1] > other; j--) links[j] = links[j - 1]
        links[j] = other
    }
    printf ".Sh SEE ALSO\n.Xr xep 3" >page
    for (i = 1; i <= found; i++) printf " ,\n.Xr %s 3", links[i] >page
    print "" >page
    close(page)
}

function write_function(name,    page) {
    page = begin_page(name, name)
    put_code(page, code[name])
    if (text[name] != "") { print ".Sh DESCRIPTION" >page; put_text(page, text[name]) }
    put_links(page, name, code[name])
}

function write_type(name,    page, all) {
    page = begin_page(name, name)
    all = code[name] (name in bits ? "\n\n" bits[name] : "") (name in list_of ? "\n\n" list_of[name] : "")
    put_code(page, all)
    if (text[name] != "") { print ".Sh DESCRIPTION" >page; put_text(page, text[name]) }
    put_links(page, name, all)
}

function write_overview(    page, i) {
    text["xep"] = overview
    header["xep"] = "xep/xep.h"
    page = begin_page("xep", "xep")
    print ".Sh DESCRIPTION" >page
    put_text(page, overview)
    print ".Sh FUNCTIONS AND TYPES\n.Bl -tag -width Ds" >page
    for (i = 1; i <= count; i++)
        print ".It Xr " names[i] " 3\n" plain(brief(text[names[i]])) >page
    print ".El\n.Sh SEE ALSO\n.Xr xep_info 1 ,\n.Xr xep_perf 1 ,\n.Xr xep_run 1" >page
    close(page)
}

# ---- headers ----

function take(name, its_kind, its_code, its_text) {
    if (name in kind) fail(name " is there twice")
    kind[name] = its_kind
    code[name] = its_code
    text[name] = its_text
    header[name] = at
    names[++count] = name
}

function take_type(    name, of) {
    if (match(body, /\(\*xep_[a-z0-9_]+\)/)) name = substr(body, RSTART + 2, RLENGTH - 3)
    else if (match(body, /xep_[a-z0-9_]+;[^;]*$/)) { name = substr(body, RSTART); sub(/;.*/, "", name) }
    if (name != "") {
        take(name, "type", body, comment)
        for (of in lists) if (index(body, of "(")) list_of[name] = lists[of]
    } else if (match(comment, /xep_[a-z0-9_]+_t\.[a-z]+/)) {
        of = substr(comment, RSTART, RLENGTH)
        sub(/\..*/, "", of)
        bits[of] = bits[of] (of in bits ? "\n\n" : "") body
    } else loose = loose (loose == "" ? "" : "\n\n") body
}

function take_function(    name) {
    sub(/^XEP_API /, "", body)
    if (!match(body, /xep_[a-z0-9_]+\(/)) fail("a declaration without a name")
    name = substr(body, RSTART, RLENGTH - 1)
    take(name, "function", body, comment)
}

FNR == 1 { at = FILENAME; sub(/.*include\//, "", at); comment = ""; state = "" }

# a comment before a declaration
state == "comment" {
    line = $0
    if (line ~ /\*\/ *$/) { state = ""; sub(/ *\*\/ *$/, "", line) }
    sub(/^ \* ?/, "", line)
    if (line != "" || state != "") comment = comment (comment == "" ? "" : "\n") line
    next
}
state == "" && /^\/\*\*/ {
    comment = $0
    sub(/^\/\*\* ?/, "", comment)
    if (comment ~ /\*\/ *$/) sub(/ *\*\/ *$/, "", comment)
    else state = "comment"
    next
}
state == "" && /^#ifndef XEP_[A-Z]*_?H$/ {
    if (overview == "" && at == "xep/xep.h") overview = comment
    comment = ""
    next
}

state == "" && /^#define XEP_[A-Z]+_LIST\(X\)/ { state = "list"; body = $0; of = $2; sub(/\(.*/, "", of) }
state == "list" {
    if ($0 != body) body = body "\n" $0
    if ($0 !~ /\\$/) { lists[of] = comment "\n" body; gsub(/ +\\\n/, "\n", lists[of]); state = ""; comment = "" }
    next
}

state == "" && /^XEP_API / { state = "function"; body = "" }
state == "" && /^(typedef|enum) / { state = "type"; body = ""; depth = 0 }
state == "function" || state == "type" {
    body = body (body == "" ? "" : "\n") $0
    line = $0
    gsub(/\/\*.*\*\//, "", line)
    depth += gsub(/\{/, "{", line) - gsub(/\}/, "}", line)
    if (state == "function" && line ~ /;/) { state = ""; take_function() }
    else if (state == "type" && depth == 0 && line ~ /;/) { state = ""; take_type() }
    next
}
/^$/ { comment = "" }

END {
    if (failed) exit 1
    if (count == 0 || overview == "") { print "man3.awk: nothing found in the headers" >"/dev/stderr"; exit 1 }
    for (i = 1; i <= count; i++)
        if (kind[names[i]] == "function") write_function(names[i])
        else write_type(names[i])
    write_overview()
}
