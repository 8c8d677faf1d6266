/* SPDX-License-Identifier: BSD-3-Clause */

#include "text.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

const char *xep_units_of(uint64_t bytes, char text[XEP_UNITS_BYTES])
{
    const char *unit = "KMGTPE";
    double value = (double)bytes / 1024;
    for (; value >= 1024; value /= 1024) unit++;
    if (bytes < 1024) snprintf(text, XEP_UNITS_BYTES, "%" PRIu64 " bytes", bytes);
    else snprintf(text, XEP_UNITS_BYTES, "%.2f %ciB", value, *unit);
    return text;
}

/* ---- did you mean ---- */

enum { MOST_LETTERS = 64 };

static unsigned least(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

/* Levenshtein's, with one row of its table; both have at most MOST_LETTERS. */
static unsigned count_edits(const char *a, const char *b)
{
    unsigned row[MOST_LETTERS + 1];
    const unsigned n = (unsigned)strlen(b);
    for (unsigned j = 0; j <= n; j++) row[j] = j;
    for (unsigned i = 1; a[i - 1] != '\0'; i++) {
        unsigned diagonal = row[0];
        row[0] = i;
        for (unsigned j = 1; j <= n; j++) {
            unsigned changed = diagonal + ((a[i - 1] | 0x20) != (b[j - 1] | 0x20));
            diagonal = row[j];
            row[j] = least(changed, least(row[j], row[j - 1]) + 1);
        }
    }
    return row[n];
}

/* whether the whole words of one are the first, or the last, of the other: NUM_THREADS and THREADS */
static int shares_end(const char *longer, const char *shorter)
{
    size_t n = strlen(longer), m = strlen(shorter);
    if (n < m + 2) return 0;
    return (strncasecmp(longer, shorter, m) == 0 && longer[m] == '_') ||
           (strcasecmp(longer + n - m, shorter) == 0 && longer[n - m - 1] == '_');
}

unsigned xep_spelling_distance(const char *word, const char *known)
{
    size_t n = strlen(word);
    if (n == 0 || n > MOST_LETTERS || strlen(known) > MOST_LETTERS) return XEP_SPELLING_FAR;
    unsigned edits = count_edits(word, known);
    if (edits <= 1 || edits <= n / 3) return edits;
    return shares_end(word, known) || shares_end(known, word) ? 2 : XEP_SPELLING_FAR;
}

/* ---- files of /proc and /sys ---- */

int xep_text_read(const char *path, char *text, size_t bytes)
{
    FILE *file = fopen(path, "re");
    size_t length = file == NULL ? 0 : fread(text, 1, bytes - 1, file);
    if (file != NULL) fclose(file);
    text[length] = '\0';
    return length != 0;
}

const char *xep_text_find(const char *text, const char *name)
{
    const size_t length = strlen(name);
    while (text != NULL && strncmp(text, name, length) != 0) {
        text = strchr(text, '\n');
        if (text != NULL) text++;
    }
    return text == NULL ? NULL : text + length + strspn(text + length, ": \t");
}
