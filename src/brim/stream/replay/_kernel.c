/* The inner loops of replay: a sum tree with sixteen children to a node, what differs of what was drawn, and copying stretches of tokens.
 *
 * The twins are in brim/stream/replay/sum_tree.py, replay_draw.py and entries.py; they are the reference in the tests and do the work where this file was not
 * compiled. Sums are added from the first child to the last, as the twin does, so both find the same slots. That nothing is read or
 * written outside of its buffer is checked here.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define WIDTH 16
#define MOST_LEVELS 16

typedef struct {
    double *nodes;
    const int64_t *offsets; /* of the levels, leaves first, and the end of the last */
    int64_t levels;
} Tree;

static int whole(const Tree *tree, int64_t held)
{
    if (tree->levels < 1 || tree->levels > MOST_LEVELS || tree->offsets[0] != 0 || tree->offsets[tree->levels] != held)
        return 0;
    for (int64_t level = 0; level < tree->levels; level++) {
        const int64_t size = tree->offsets[level + 1] - tree->offsets[level];
        if (size < WIDTH || size % WIDTH || (level + 1 == tree->levels && size != WIDTH))
            return 0;
        if (level + 1 < tree->levels && (tree->offsets[level + 2] - tree->offsets[level + 1]) * WIDTH < size)
            return 0;
    }
    return 1;
}

static double sum(const double *children)
{
    double total = children[0];
    for (int child = 1; child < WIDTH; child++)
        total += children[child];
    return total;
}

static void add_up(const Tree *tree, const int64_t *slots, int64_t n)
{
    int64_t step = 1;
    for (int64_t level = 0; level + 1 < tree->levels; level++) {
        const double *below = tree->nodes + tree->offsets[level];
        double *above = tree->nodes + tree->offsets[level + 1];
        const int64_t groups = (tree->offsets[level + 1] - tree->offsets[level]) / WIDTH;
        step *= WIDTH;
        if (n >= groups) {
            for (int64_t group = 0; group < groups; group++)
                above[group] = sum(below + group * WIDTH);
            continue;
        }
        for (int64_t i = 0, last = -1; i < n; i++) {
            const int64_t group = slots[i] / step;
            if (group != last)
                above[group] = sum(below + group * WIDTH);
            last = group;
        }
    }
}

static int open_tree(Tree *tree, const Py_buffer *nodes, const Py_buffer *offsets)
{
    tree->nodes = nodes->buf;
    tree->offsets = offsets->buf;
    tree->levels = offsets->len / (int64_t)sizeof(int64_t) - 1;
    return whole(tree, nodes->len / (int64_t)sizeof(double));
}

static PyObject *refuse(void)
{
    PyErr_SetString(PyExc_ValueError, "the slots or stretches do not fit the arrays");
    return NULL;
}

/* set(nodes:float64, offsets:int64, slots:int64, weights:float64, capacity, largest) -> the sum of all weights
 *
 * A slot that is not below `capacity`, or a weight that is not between 0 and `largest`, changes nothing and gives -1.
 */
static PyObject *set(PyObject *self, PyObject *args)
{
    Py_buffer nodes, offsets, slots, weights;
    long long capacity;
    double largest;
    if (!PyArg_ParseTuple(args, "w*y*y*y*Ld", &nodes, &offsets, &slots, &weights, &capacity, &largest))
        return NULL;
    Tree tree;
    const int64_t n = slots.len / (int64_t)sizeof(int64_t);
    const int64_t *where = slots.buf;
    const double *values = weights.buf;
    double total = -1;
    int right = open_tree(&tree, &nodes, &offsets) && slots.len == weights.len && capacity <= tree.offsets[1], good = right;
    Py_BEGIN_ALLOW_THREADS
    for (int64_t i = 0; good && i < n; i++)
        good = where[i] >= 0 && where[i] < capacity && values[i] >= 0 && values[i] <= largest;
    if (good) {
        for (int64_t i = 0; i < n; i++)
            tree.nodes[where[i]] = values[i];
        add_up(&tree, where, n);
        total = sum(tree.nodes + tree.offsets[tree.levels - 1]);
    }
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&nodes);
    PyBuffer_Release(&offsets);
    PyBuffer_Release(&slots);
    PyBuffer_Release(&weights);
    return right ? PyFloat_FromDouble(total) : refuse();
}

/* The children of one node: which of them `rest` falls into, and how much of it is left. A rest that rounding put beyond the last
 * child falls into the last one that has a weight. */
static int64_t choose(const double *children, double *rest)
{
    double total = 0, before = 0;
    for (int child = 0; child < WIDTH; child++) {
        before = total;
        total = child ? total + children[child] : children[0];
        if (*rest < total) {
            *rest -= before;
            return child;
        }
    }
    int child = WIDTH - 1;
    while (child > 0 && !(children[child] > 0))
        child--;
    total = 0;
    for (int i = 0; i < child; i++)
        total += children[i];
    *rest -= total;
    return child;
}

/* Level by level for a block of numbers at a time: the nodes of a level are fetched from memory side by side, not one behind the other. */
#define BLOCK 64

static void find_block(const Tree *tree, const double *rest_, int64_t n, int64_t *at)
{
    double rest[BLOCK];
    memcpy(rest, rest_, n * sizeof(double));
    memset(at, 0, n * sizeof(int64_t));
    for (int64_t level = tree->levels - 1; level >= 0; level--) {
        const double *nodes = tree->nodes + tree->offsets[level];
        const int64_t last = (tree->offsets[level + 1] - tree->offsets[level]) / WIDTH - 1;
        for (int64_t i = 0; i < n; i++) {
            if (at[i] > last) /* nothing but zeros on the way: the tree is not what it should be */
                at[i] = last;
            at[i] = at[i] * WIDTH + choose(nodes + at[i] * WIDTH, &rest[i]);
#ifdef __GNUC__
            if (level) {
                const char *next = (const char *)(tree->nodes + tree->offsets[level - 1] + at[i] * WIDTH);
                __builtin_prefetch(next);
                __builtin_prefetch(next + 64);
            }
#endif
        }
    }
}

/* find(nodes:float64, offsets:int64, below:float64, found:int64) */
static PyObject *find(PyObject *self, PyObject *args)
{
    Py_buffer nodes, offsets, below, found;
    if (!PyArg_ParseTuple(args, "y*y*y*w*", &nodes, &offsets, &below, &found))
        return NULL;
    Tree tree;
    const int64_t n = below.len / (int64_t)sizeof(double);
    const int right = open_tree(&tree, &nodes, &offsets) && below.len == found.len;
    Py_BEGIN_ALLOW_THREADS
    for (int64_t i = 0; right && i < n; i += BLOCK)
        find_block(&tree, (const double *)below.buf + i, n - i < BLOCK ? n - i : BLOCK, (int64_t *)found.buf + i);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&nodes);
    PyBuffer_Release(&offsets);
    PyBuffer_Release(&below);
    PyBuffer_Release(&found);
    if (!right)
        return refuse();
    Py_RETURN_NONE;
}

/* gather(source, begin:int64, lengths:int32, out, size of a source item, size of an item of out)
 *
 * Copies stretches end to end. Items of two bytes may be widened to four; else sizes are equal.
 */
static PyObject *gather(PyObject *self, PyObject *args)
{
    Py_buffer source, begin_, lengths_, out_;
    int from, to;
    if (!PyArg_ParseTuple(args, "y*y*y*w*ii", &source, &begin_, &lengths_, &out_, &from, &to))
        return NULL;
    const int64_t n = lengths_.len / (int64_t)sizeof(int32_t), *begin = begin_.buf;
    const int32_t *lengths = lengths_.buf;
    int right = begin_.len == n * (int64_t)sizeof(int64_t) && ((from == to && (from == 1 || from == 2 || from == 4)) || (from == 2 && to == 4));
    const int64_t held = right ? source.len / from : 0;
    int64_t room = right ? out_.len / to : 0;
    Py_BEGIN_ALLOW_THREADS
    for (int64_t i = 0; right && i < n; i++) {
        right = lengths[i] >= 0 && lengths[i] <= room && begin[i] >= 0 && begin[i] <= held - lengths[i];
        room -= lengths[i];
    }
    if (right && room == 0) {
        char *out = out_.buf;
        for (int64_t i = 0; i < n; i++) {
            const char *stretch = (const char *)source.buf + begin[i] * from;
#ifdef __GNUC__
            if (i + 8 < n) {
                const char *next = (const char *)source.buf + begin[i + 8] * from;
                for (int64_t line = 0; line < (int64_t)lengths[i + 8] * from && line < 512; line += 64)
                    __builtin_prefetch(next + line);
            }
#endif
            if (from == to) {
                memcpy(out, stretch, (size_t)lengths[i] * from);
            } else {
                const uint16_t *restrict narrow = (const uint16_t *)stretch;
                int32_t *restrict wide = (int32_t *)out;
                for (int32_t j = 0; j < lengths[i]; j++)
                    wide[j] = narrow[j];
            }
            out += (int64_t)lengths[i] * to;
        }
    }
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&source);
    PyBuffer_Release(&begin_);
    PyBuffer_Release(&lengths_);
    PyBuffer_Release(&out_);
    if (!right || room)
        return refuse();
    Py_RETURN_NONE;
}

/* distinct(numbers:int64, out:int64) -> how many; the first of each kind, in their order. Numbers are not negative. */
static PyObject *distinct(PyObject *self, PyObject *args)
{
    Py_buffer numbers_, out_;
    if (!PyArg_ParseTuple(args, "y*w*", &numbers_, &out_))
        return NULL;
    const int64_t n = numbers_.len / (int64_t)sizeof(int64_t), *numbers = numbers_.buf;
    const int fits = out_.len >= numbers_.len;
    int64_t *out = out_.buf, found = 0;
    int bits = 4;
    while (bits < 40 && ((int64_t)1 << bits) < 4 * n)
        bits++;
    int64_t *table = fits ? calloc((size_t)1 << bits, sizeof(int64_t)) : NULL; /* a number plus 1; 0 is an empty place */
    if (table) {
        const int64_t mask = ((int64_t)1 << bits) - 1;
        Py_BEGIN_ALLOW_THREADS
        for (int64_t i = 0; i < n; i++) {
            const int64_t entry = (int64_t)((uint64_t)numbers[i] + 1);
            int64_t place = (int64_t)(((uint64_t)numbers[i] * 0x9E3779B97F4A7C15u) >> (64 - bits));
            while (table[place] && table[place] != entry)
                place = (place + 1) & mask;
            if (!table[place]) {
                table[place] = entry;
                out[found++] = numbers[i];
            }
        }
        Py_END_ALLOW_THREADS
        free(table);
    }
    PyBuffer_Release(&numbers_);
    PyBuffer_Release(&out_);
    if (!fits)
        return refuse();
    if (!table)
        return PyErr_NoMemory();
    return PyLong_FromLongLong(found);
}

static PyMethodDef methods[] = {
    {"set", set, METH_VARARGS, "Give slots new weights."},
    {"find", find, METH_VARARGS, "Find the slots that numbers fall into."},
    {"distinct", distinct, METH_VARARGS, "The first of each kind, in their order."},
    {"gather", gather, METH_VARARGS, "Copy stretches end to end."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "brim.stream.replay._kernel", NULL, 0, methods};

PyMODINIT_FUNC PyInit__kernel(void)
{
    return PyModuleDef_Init(&module);
}
