/* One pass over a batch: tokens, segments, positions, what is learned and labels, padding included; and its counts.
 *
 * The twin is in brim/batch/collate.py; it is the reference in the tests and does the work where this file was not compiled. Shapes are
 * the caller's business; that nothing is read or written outside of its buffer is checked here.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

/* The loops are compiled twice, and the processor's own version is chosen when this module is loaded. They work on integers, so the answer
 * is the same. */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__has_attribute)
#if __has_attribute(target_clones)
#define FASTEST __attribute__((target_clones("avx2", "default")))
#endif
#endif
#ifndef FASTEST
#define FASTEST
#endif

enum { LINE = 64, EXPECTED = 32 * LINE, SOON = 2 };

/* Where a batch is read from and written to. Arrays of [rows, width] are contiguous; cu_seqlens has one number more than lengths. */
typedef struct {
    const void *source;
    const uint8_t *learned;
    const int64_t *begin, *row_ptr;
    const int32_t *lengths;
    int64_t rows, filled, used, width, pad_id, ignored;
    void *tokens, *positions, *labels;
    int32_t *segment_ids, *cu_seqlens;
    uint8_t *loss_mask;
} Layout;

/* Asks for the memory of a sequence that comes later: rows lie far from each other, so each would begin with a wait for memory. */
static inline void expect(const void *start, int64_t size)
{
#if defined(__GNUC__)
    const char *line = start;
    for (int64_t at = 0; at < size && at < EXPECTED; at += LINE)
        __builtin_prefetch(line + at);
#endif
}

/* One function for each pair of source and output types. The first token of a segment is never a target, so its mask is 0. A label is
 * chosen by arithmetic: a branch on what is learned, which changes from token to token, would be mispredicted, and not vectorised. */
#define LAY_OUT(NAME, IN, OUT)                                                                                                            \
    FASTEST static void NAME(const Layout *at)                                                                                            \
    {                                                                                                                                     \
        const OUT pad = (OUT)at->pad_id, ignored = (OUT)at->ignored;                                                                      \
        for (int64_t row = 0; row < at->rows; row++) {                                                                                    \
            OUT *restrict tokens = (OUT *)at->tokens + row * at->width;                                                                   \
            OUT *restrict positions = (OUT *)at->positions + row * at->width;                                                             \
            OUT *restrict labels = (OUT *)at->labels + row * at->width;                                                                   \
            int32_t *restrict segment_ids = at->segment_ids + row * at->width;                                                            \
            uint8_t *restrict mask = at->loss_mask + row * at->width;                                                                     \
            int64_t left = at->width, first = row < at->filled ? at->row_ptr[row] : 0, last = row < at->filled ? at->row_ptr[row + 1] : 0; \
            for (int64_t s = first; s < last; s++) {                                                                                      \
                const int64_t size = at->lengths[s];                                                                                      \
                const IN *restrict from = (const IN *)at->source + at->begin[s];                                                          \
                const uint8_t *restrict learned = at->learned + at->begin[s];                                                             \
                const int32_t number = (int32_t)(s - first + 1);                                                                          \
                if (s + SOON < at->used) {                                                                                                \
                    const int64_t begin = at->begin[s + SOON], later = at->lengths[s + SOON];                                             \
                    expect((const IN *)at->source + begin, later * (int64_t)sizeof(IN));                                                  \
                    expect(at->learned + begin, later);                                                                                   \
                }                                                                                                                         \
                for (int64_t i = 0; i < size; i++) {                                                                                      \
                    const OUT token = (OUT)from[i], keep = -(OUT)(learned[i] != 0);                                                       \
                    tokens[i] = token;                                                                                                    \
                    labels[i] = (token & keep) | (ignored & ~keep);                                                                       \
                    positions[i] = (OUT)i;                                                                                                \
                    segment_ids[i] = number;                                                                                              \
                }                                                                                                                         \
                if (size) {                                                                                                               \
                    memcpy(mask, learned, size);                                                                                          \
                    mask[0] = 0;                                                                                                          \
                    labels[0] = ignored;                                                                                                  \
                }                                                                                                                         \
                tokens += size, positions += size, labels += size, segment_ids += size, mask += size, left -= size;                       \
            }                                                                                                                             \
            for (int64_t i = 0; i < left; i++) {                                                                                          \
                tokens[i] = pad;                                                                                                          \
                labels[i] = ignored;                                                                                                      \
            }                                                                                                                             \
            memset(positions, 0, left * sizeof(OUT));                                                                                     \
            memset(segment_ids, 0, left * sizeof(int32_t));                                                                               \
            memset(mask, 0, left);                                                                                                        \
        }                                                                                                                                 \
    }

LAY_OUT(uint16_to_int32, uint16_t, int32_t)
LAY_OUT(uint32_to_int32, uint32_t, int32_t)
LAY_OUT(int32_to_int32, int32_t, int32_t)
LAY_OUT(uint16_to_int64, uint16_t, int64_t)
LAY_OUT(uint32_to_int64, uint32_t, int64_t)
LAY_OUT(int32_to_int64, int32_t, int64_t)

typedef void (*Loop)(const Layout *);

static Loop choose(char source, int wide)
{
    switch (source) {
    case 'H':
        return wide ? uint16_to_int64 : uint16_to_int32;
    case 'I':
        return wide ? uint32_to_int64 : uint32_to_int32;
    case 'i':
        return wide ? int32_to_int64 : int32_to_int32;
    default:
        return NULL;
    }
}

/* Whether rows hold all sequences, one after the other, and neither they nor what they are read from end too soon. */
static int fits(const Layout *at, int64_t sequences, int64_t held)
{
    if (at->filled < 0 || at->row_ptr[0] != 0 || at->row_ptr[at->filled] != sequences)
        return 0;
    for (int64_t row = 0; row < at->filled; row++) {
        const int64_t first = at->row_ptr[row], last = at->row_ptr[row + 1];
        int64_t left = at->width;
        if (first < 0 || last < first || last > sequences)
            return 0;
        for (int64_t s = first; s < last; s++) {
            const int64_t size = at->lengths[s], begin = at->begin[s];
            if (size < 0 || size > left || begin < 0 || begin > held - size)
                return 0;
            left -= size;
        }
    }
    return 1;
}

/* Writes the running sum of the lengths. Returns whether no length is negative and the sum fits. */
static int bounds(const Layout *at, int64_t sequences, int64_t *longest)
{
    int64_t total = 0;
    *longest = 0;
    at->cu_seqlens[0] = 0;
    for (int64_t s = 0; s < sequences; s++) {
        const int64_t size = at->lengths[s];
        total += size;
        if (size < 0 || total > INT32_MAX)
            return 0;
        *longest = size > *longest ? size : *longest;
        at->cu_seqlens[s + 1] = (int32_t)total;
    }
    return 1;
}

/* Counts what is not 0, in runs that a sum of bytes cannot overflow in 32 bits, so that the loop is vectorised. */
FASTEST static int64_t count(const uint8_t *mask, int64_t size)
{
    int64_t total = 0;
    for (int64_t start = 0; start < size; start += 1 << 20) {
        const int64_t end = size - start < 1 << 20 ? size : start + (1 << 20);
        uint32_t some = 0;
        for (int64_t i = start; i < end; i++)
            some += mask[i] != 0;
        total += some;
    }
    return total;
}

/* lay_out(source, learned:uint8, begin:int64, lengths:int32, row_ptr:int64, kind of source, rows, width, pad_id, ignored,
 *         tokens, segment_ids:int32, positions, loss_mask:uint8, labels, cu_seqlens:int32) -> (tokens, longest sequence, trained-on tokens)
 *
 * The source is of uint16 (kind H), uint32 (I) or int32 (i). Tokens, positions and labels are int32 or int64, as their size says.
 */
static PyObject *lay_out(PyObject *self, PyObject *args)
{
    enum { SOURCE, LEARNED, BEGIN, LENGTHS, ROW_PTR, TOKENS, SEGMENT_IDS, POSITIONS, LOSS_MASK, LABELS, CU_SEQLENS, BUFFERS };
    Py_buffer b[BUFFERS];
    int kind;
    long long rows, width, pad_id, ignored;
    if (!PyArg_ParseTuple(args, "y*y*y*y*y*CLLLLw*w*w*w*w*w*", &b[SOURCE], &b[LEARNED], &b[BEGIN], &b[LENGTHS], &b[ROW_PTR], &kind, &rows,
                          &width, &pad_id, &ignored, &b[TOKENS], &b[SEGMENT_IDS], &b[POSITIONS], &b[LOSS_MASK], &b[LABELS],
                          &b[CU_SEQLENS]))
        return NULL;
    const int64_t slots = b[LOSS_MASK].len, sequences = b[LENGTHS].len / (int64_t)sizeof(int32_t);
    const int wide = b[TOKENS].len == slots * (int64_t)sizeof(int64_t);
    const int64_t size = slots * (int64_t)(wide ? sizeof(int64_t) : sizeof(int32_t));
    const Loop loop = choose((char)kind, wide);
    Layout at = {
        .source = b[SOURCE].buf,
        .learned = b[LEARNED].buf,
        .begin = b[BEGIN].buf,
        .row_ptr = b[ROW_PTR].buf,
        .lengths = b[LENGTHS].buf,
        .rows = rows,
        .filled = b[ROW_PTR].len / (int64_t)sizeof(int64_t) - 1,
        .used = sequences,
        .width = width,
        .pad_id = pad_id,
        .ignored = ignored,
        .tokens = b[TOKENS].buf,
        .positions = b[POSITIONS].buf,
        .labels = b[LABELS].buf,
        .segment_ids = b[SEGMENT_IDS].buf,
        .loss_mask = b[LOSS_MASK].buf,
        .cu_seqlens = b[CU_SEQLENS].buf,
    };
    const int64_t stored = b[SOURCE].len / (kind == 'H' ? 2 : 4), held = stored < b[LEARNED].len ? stored : b[LEARNED].len;
    const int area = rows >= 0 && width >= 0 && (width == 0 || rows <= slots / width) && rows * width == slots;
    int right = loop && area && at.filled >= 0 && at.filled <= rows && b[TOKENS].len == size && b[POSITIONS].len == size &&
                b[LABELS].len == size && b[SEGMENT_IDS].len == slots * (int64_t)sizeof(int32_t) &&
                b[BEGIN].len == sequences * (int64_t)sizeof(int64_t) && b[CU_SEQLENS].len == (sequences + 1) * (int64_t)sizeof(int32_t);
    int64_t longest = 0, learned = 0;
    Py_BEGIN_ALLOW_THREADS
    right = right && fits(&at, sequences, held) && bounds(&at, sequences, &longest);
    if (right) {
        loop(&at);
        learned = count(at.loss_mask, slots);
    }
    Py_END_ALLOW_THREADS
    const int32_t total = right ? at.cu_seqlens[sequences] : 0;
    for (int i = 0; i < BUFFERS; i++)
        PyBuffer_Release(&b[i]);
    if (!right) {
        PyErr_SetString(PyExc_ValueError, "the sequences do not fit the arrays");
        return NULL;
    }
    return Py_BuildValue("iLL", total, (long long)longest, (long long)learned);
}

static PyMethodDef methods[] = {
    {"lay_out", lay_out, METH_VARARGS, "Fill the arrays of a batch."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "brim.batch._kernel", NULL, 0, methods};

PyMODINIT_FUNC PyInit__kernel(void)
{
    return PyModuleDef_Init(&module);
}
