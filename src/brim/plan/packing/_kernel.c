/* The loops of packing that NumPy cannot express as whole-array operations: best fit, first fit, and the knapsack of the search for patterns.
 *
 * Everything here has a twin in Python or NumPy beside its caller (best_fit.py, first_fit.py, knapsack.py), which is the reference in the
 * tests and does the work where this file was not compiled. Buffers are int32 unless said otherwise, and are never resized.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Best fit, longest first, of a histogram.
 *
 * A group is a run of rows that hold the same lengths; groups with the same room left are a stack. An event puts `copies` sequences of one
 * length into each row of a group. The distinct rooms are kept in a tree of bits with 64 children to a node, and a table of stacks by room;
 * or, if there are few of them for the capacity, in sorted blocks, so that memory depends on the number of sequences. */
typedef struct { int32_t row, rows, held, next; } Group;
typedef struct { int32_t row, last_row, copies, slot; } Event;
enum { FEW_ROOMS = 1024, SMALL_TABLE = 1 << 22, MOST_LEVELS = 6, NONE = -1 };
typedef struct { int32_t room, top; } Stack; /* the groups with this much room */
typedef struct { int32_t stacks; Stack stack[FEW_ROOMS]; } Block; /* rooms ascend */

typedef struct {
    Group *group;
    Event *event;
    Py_ssize_t groups, group_room, events, event_room;
    int32_t unused;                 /* groups that can be used again, as a list */
    int32_t capacity, shortest;
    Block **block;                  /* ascending, and none is empty unless it is the only one; NULL: rooms are bits */
    Py_ssize_t blocks, block_room;
    Py_ssize_t at;                  /* the block that `find_room` has looked into, */
    int32_t place;                  /* and the place in it that it has found */
    int32_t *top;                   /* by room: the stack of its groups */
    uint64_t *bits[MOST_LEVELS];
    Py_ssize_t words[MOST_LEVELS];
    int levels, failed;
} Walk;

static int start_walk(Walk *walk, int32_t capacity, int32_t shortest, Py_ssize_t n)
{
    memset(walk, 0, sizeof *walk);
    walk->capacity = capacity;
    walk->shortest = shortest;
    walk->unused = NONE;
    walk->group_room = walk->event_room = n < 64 ? n + 4 : 64;
    walk->group = malloc(walk->group_room * sizeof(Group));
    walk->event = malloc(walk->event_room * sizeof(Event));
    if ((capacity > SMALL_TABLE && capacity / 16 > n) || (n < FEW_ROOMS && capacity / 64 > n)) {
        walk->block_room = 4;
        walk->block = malloc(walk->block_room * sizeof(Block *));
        Block *first = walk->block ? malloc(sizeof(Block)) : NULL;
        if (first) {
            first->stacks = 0;
            walk->block[walk->blocks++] = first;
        }
    } else {
        Py_ssize_t bits = (Py_ssize_t)capacity + 1, total = 0;
        do {
            bits = walk->words[walk->levels++] = bits / 64 + 1;
            total += bits;
        } while (bits > 1 && walk->levels < MOST_LEVELS);
        walk->top = malloc(((size_t)capacity + 1) * sizeof(int32_t)); /* read only where a bit is set */
        walk->bits[0] = calloc(total, sizeof(uint64_t));
        for (int level = 1; level < walk->levels && walk->bits[0]; level++)
            walk->bits[level] = walk->bits[level - 1] + walk->words[level - 1];
    }
    return walk->group && walk->event && (walk->blocks || (walk->top && walk->bits[0]));
}

static void end_walk(Walk *walk)
{
    free(walk->group);
    free(walk->event);
    free(walk->top);
    free(walk->bits[0]);
    for (Py_ssize_t at = 0; at < walk->blocks; at++)
        free(walk->block[at]);
    free(walk->block);
}

/* The smallest room of at least `length`, or -1; `*stack` is where the stack of its groups begins. */
static int32_t find_room(Walk *walk, int32_t length, int32_t **stack)
{
    if (walk->block) {
        Py_ssize_t first = 0, last = walk->blocks - 1; /* the first block that ends with enough room, or the last one */
        while (first < last) {
            Py_ssize_t middle = (first + last) / 2;
            if (walk->block[middle]->stack[walk->block[middle]->stacks - 1].room < length)
                first = middle + 1;
            else
                last = middle;
        }
        Block *block = walk->block[walk->at = first];
        int32_t low = 0, high = block->stacks;
        while (low < high) {
            int32_t middle = (low + high) / 2;
            if (block->stack[middle].room < length)
                low = middle + 1;
            else
                high = middle;
        }
        walk->place = low;
        *stack = &block->stack[low].top;
        return low < block->stacks ? block->stack[low].room : NONE;
    }
    Py_ssize_t at = length;
    for (int level = 0; level < walk->levels; level++) {
        if (at >> 6 < walk->words[level]) {
            uint64_t word = walk->bits[level][at >> 6] >> (at & 63);
            if (word) {
                at += __builtin_ctzll(word);
                while (level--)
                    at = (at << 6) + __builtin_ctzll(walk->bits[level][at]);
                *stack = walk->top + at;
                return (int32_t)at;
            }
        }
        at = (at >> 6) + 1;
    }
    return NONE;
}

/* Insert a room, which `find_room` has not found. Return the place of its stack, or NULL if there is no memory. */
static int32_t *insert_room(Walk *walk, int32_t room)
{
    if (!walk->block) {
        Py_ssize_t at = room;
        for (int level = 0; level < walk->levels; level++, at >>= 6)
            walk->bits[level][at >> 6] |= 1ULL << (at & 63);
        return walk->top + room;
    }
    Block *block = walk->block[walk->at];
    int32_t place = walk->place;
    if (block->stacks == FEW_ROOMS) { /* move its second half to a new block */
        if (walk->blocks == walk->block_room) {
            Block **more = realloc(walk->block, 2 * walk->block_room * sizeof(Block *));
            if (!more)
                return NULL;
            walk->block = more;
            walk->block_room *= 2;
        }
        Block *second = malloc(sizeof(Block));
        if (!second)
            return NULL;
        block->stacks = second->stacks = FEW_ROOMS / 2;
        memcpy(second->stack, block->stack + FEW_ROOMS / 2, FEW_ROOMS / 2 * sizeof(Stack));
        memmove(walk->block + walk->at + 2, walk->block + walk->at + 1, (walk->blocks++ - walk->at - 1) * sizeof(Block *));
        walk->block[walk->at + 1] = second;
        if (place > FEW_ROOMS / 2) {
            block = second;
            place -= FEW_ROOMS / 2;
        }
    }
    memmove(block->stack + place + 1, block->stack + place, (block->stacks++ - place) * sizeof(Stack));
    block->stack[place].room = room;
    return &block->stack[place].top;
}

/* Remove the room that `find_room` has found. */
static void remove_room(Walk *walk, int32_t room)
{
    if (walk->block) {
        Block *block = walk->block[walk->at];
        memmove(block->stack + walk->place, block->stack + walk->place + 1, (--block->stacks - walk->place) * sizeof(Stack));
        if (block->stacks == 0 && walk->blocks > 1) {
            free(block);
            memmove(walk->block + walk->at, walk->block + walk->at + 1, (--walk->blocks - walk->at) * sizeof(Block *));
        }
        return;
    }
    Py_ssize_t at = room;
    for (int level = 0; level < walk->levels; level++, at >>= 6)
        if (walk->bits[level][at >> 6] &= ~(1ULL << (at & 63)))
            break;
}

/* Put a group on the stack of its room. */
static void push(Walk *walk, int32_t room, int32_t row, int32_t rows, int32_t held)
{
    int32_t number = walk->unused, *stack = NULL;
    if (number != NONE) {
        walk->unused = walk->group[number].next;
    } else {
        if (walk->groups == walk->group_room) {
            Group *more = realloc(walk->group, 2 * walk->group_room * sizeof(Group));
            if (!more) {
                walk->failed = 1;
                return;
            }
            walk->group = more;
            walk->group_room *= 2;
        }
        number = (int32_t)walk->groups++;
    }
    if (find_room(walk, room, &stack) != room) {
        stack = insert_room(walk, room);
        if (!stack) {
            walk->failed = 1;
            return;
        }
        *stack = NONE;
    }
    walk->group[number] = (Group){row, rows, held, *stack};
    *stack = number;
}

static void record(Walk *walk, int32_t row, int32_t rows, int32_t copies, int32_t slot)
{
    if (walk->events == walk->event_room) {
        Event *more = realloc(walk->event, 2 * walk->event_room * sizeof(Event));
        if (!more) {
            walk->failed = 1;
            return;
        }
        walk->event = more;
        walk->event_room *= 2;
    }
    walk->event[walk->events++] = (Event){row, row + rows - 1, copies, slot};
}

/* Pack `count` sequences of one length, shorter than all before; return the number of rows then. `size` gets the sequences of each row. */
static int32_t take_length(Walk *walk, int32_t length, int32_t count, int32_t most, int32_t num_rows, int64_t *size)
{
    while (count && !walk->failed) {
        int32_t row, rows, held, copies, *stack, room = find_room(walk, length, &stack), number = NONE;
        if (room != NONE) {
            number = *stack;
            row = walk->group[number].row;
            rows = walk->group[number].rows;
            held = walk->group[number].held;
        } else { /* no row has room: open as many as are needed */
            room = walk->capacity;
            copies = room / length < most ? room / length : most;
            row = num_rows;
            rows = (int32_t)(((int64_t)count + copies - 1) / copies);
            held = 0;
            num_rows += rows;
        }
        copies = room / length;
        copies = copies > count ? count : copies;
        copies = copies > most - held ? most - held : copies;
        int32_t filled = count / copies;
        if (filled >= rows) {
            filled = rows;
            if (number != NONE) {
                *stack = walk->group[number].next;
                walk->group[number].next = walk->unused;
                walk->unused = number;
                if (*stack == NONE)
                    remove_room(walk, room);
            }
        } else if (number != NONE) {
            walk->group[number].row += filled;
            walk->group[number].rows -= filled;
        } else {
            push(walk, room, row + filled, rows - filled, held);
        }
        record(walk, row, filled, copies, held);
        count -= filled * copies;
        held += copies;
        room -= copies * length;
        for (int32_t each = 0; each < filled; each++)
            size[row + each] = held;
        if (room >= walk->shortest && held < most)
            push(walk, room, row, filled, held);
    }
    return num_rows;
}

typedef struct { uint32_t key; int32_t sequence; } Keyed;

/* Sort by key, stable; `spare` has room for as many. Returns where the result is. */
static Keyed *sort_keyed(Keyed *keyed, Keyed *spare, Py_ssize_t n, uint32_t highest)
{
    if (n <= 64) {
        for (Py_ssize_t i = 1; i < n; i++) {
            Keyed one = keyed[i];
            Py_ssize_t at = i;
            for (; at > 0 && keyed[at - 1].key > one.key; at--)
                keyed[at] = keyed[at - 1];
            keyed[at] = one;
        }
        return keyed;
    }
    int bits = n < 4096 ? 8 : 11;
    for (int shift = 0; shift < 32 && highest >> shift; shift += bits) {
        Py_ssize_t count[2048] = {0}, before = 0;
        const uint32_t mask = (1u << bits) - 1;
        for (Py_ssize_t i = 0; i < n; i++)
            count[keyed[i].key >> shift & mask]++;
        for (uint32_t digit = 0; digit <= mask; digit++) {
            Py_ssize_t here = count[digit];
            count[digit] = before;
            before += here;
        }
        for (Py_ssize_t i = 0; i < n; i++)
            spare[count[keyed[i].key >> shift & mask]++] = keyed[i];
        Keyed *sorted = spare;
        spare = keyed;
        keyed = sorted;
    }
    return keyed;
}

static void add_up(int64_t *ptr, Py_ssize_t rows)
{
    ptr[0] = 0;
    for (Py_ssize_t row = 0; row < rows; row++)
        ptr[row + 1] += ptr[row];
}

/* Put sequences, longest first, into the places of the events, one after the other. */
static void put(const Walk *walk, const int32_t *sorted, int32_t *out, const int64_t *ptr)
{
    for (const Event *event = walk->event; event < walk->event + walk->events; event++) {
        const int32_t copies = event->copies, slot = event->slot;
        if (copies == 1)
            for (int32_t row = event->row; row <= event->last_row; row++)
                out[ptr[row] + slot] = *sorted++;
        else
            for (int32_t row = event->row; row <= event->last_row; row++)
                for (int32_t copy = 0; copy < copies; copy++)
                    out[ptr[row] + slot + copy] = *sorted++;
    }
}

/* Few sequences for the range of their lengths: they are sorted by digits. */
static Py_ssize_t pack_sorted(Walk *walk, const int32_t *lengths, const int32_t *order, Py_ssize_t n, int32_t longest, int32_t most,
                              int32_t *out, int64_t *ptr)
{
    Keyed *keyed = malloc(2 * n * sizeof(Keyed));
    if (!keyed)
        return -1;
    for (Py_ssize_t i = 0; i < n; i++) {
        const int32_t sequence = order ? order[i] : (int32_t)i, length = lengths[sequence];
        keyed[i] = (Keyed){(uint32_t)(longest - (length ? length : 1)), sequence};
    }
    const Keyed *found = sort_keyed(keyed, keyed + n, n, (uint32_t)(longest - walk->shortest));
    int32_t *sorted = (int32_t *)(found == keyed ? keyed + n : keyed), rows = 0;
    for (Py_ssize_t i = 0, next; i < n; i = next) {
        for (next = i; next < n && found[next].key == found[i].key; next++)
            sorted[next] = found[next].sequence;
        rows = take_length(walk, longest - (int32_t)found[i].key, (int32_t)(next - i), most, rows, ptr + 1);
    }
    if (!walk->failed) {
        add_up(ptr, rows);
        put(walk, sorted, out, ptr);
    }
    free(keyed);
    return walk->failed ? -1 : rows;
}

/* Many sequences: they are sorted by counting. */
static Py_ssize_t pack_counted(Walk *walk, const int32_t *lengths, const int32_t *order, Py_ssize_t n, int32_t longest, int32_t most,
                               int32_t *out, int64_t *ptr)
{
    const int32_t shortest = walk->shortest;
    int32_t *place = calloc((size_t)longest - shortest + 1, sizeof(int32_t)); /* by length: at first their number */
    int32_t *sorted = malloc(n * sizeof(int32_t)), rows = 0, before = 0;
    walk->failed = !place || !sorted;
    for (Py_ssize_t i = 0; i < n && !walk->failed; i++)
        place[(lengths[i] ? lengths[i] : 1) - shortest]++;
    for (int32_t length = longest; length >= shortest && !walk->failed; length--) {
        const int32_t count = place[length - shortest];
        place[length - shortest] = before;
        before += count;
        if (count)
            rows = take_length(walk, length, count, most, rows, ptr + 1);
    }
    if (!walk->failed) {
        for (Py_ssize_t i = 0; i < n; i++) {
            const int32_t sequence = order ? order[i] : (int32_t)i, length = lengths[sequence];
            sorted[place[(length ? length : 1) - shortest]++] = sequence;
        }
        add_up(ptr, rows);
        put(walk, sorted, out, ptr);
    }
    free(place);
    free(sorted);
    return walk->failed ? -1 : rows;
}

/* best_fit(lengths, order, capacity, most, out, ptr:int64) -> number of rows, or -1
 *
 * Fills `out` with the sequences of the rows, and `ptr`, with room for one row per sequence, with where rows begin. -1: a length is
 * negative or above the capacity. An empty sequence takes up one token. `order` is empty, or the order in which sequences arrive.
 */
static PyObject *best_fit(PyObject *self, PyObject *args)
{
    Py_buffer lengths_, order_, out_, ptr_;
    int capacity, most;
    if (!PyArg_ParseTuple(args, "y*y*iiw*w*", &lengths_, &order_, &capacity, &most, &out_, &ptr_))
        return NULL;
    const int32_t *lengths = lengths_.buf, *order = order_.len ? order_.buf : NULL;
    const Py_ssize_t n = lengths_.len / (Py_ssize_t)sizeof(int32_t);
    const int uneven = out_.len != lengths_.len || ptr_.len != (n + 1) * (Py_ssize_t)sizeof(int64_t) || capacity < 1 || most < 1 ||
                       (order && order_.len != lengths_.len);
    int32_t shortest = INT32_MAX, longest = 0;
    Py_ssize_t rows = 0;
    int fits = 1, failed = 0;
    if (!uneven) {
        Py_BEGIN_ALLOW_THREADS
        for (Py_ssize_t i = 0; i < n; i++) {
            shortest = lengths[i] < shortest ? lengths[i] : shortest;
            longest = lengths[i] > longest ? lengths[i] : longest;
        }
        fits = n == 0 || (shortest >= 0 && longest <= capacity);
        *(int64_t *)ptr_.buf = 0;
        if (n && fits) {
            Walk walk;
            shortest = shortest ? shortest : 1;
            longest = longest ? longest : 1;
            failed = !start_walk(&walk, capacity, shortest, n);
            if (!failed) {
                rows = ((longest - shortest) / 16 > n ? pack_sorted : pack_counted)(&walk, lengths, order, n, longest, most, out_.buf,
                                                                                    ptr_.buf);
                failed = rows < 0;
            }
            end_walk(&walk);
        }
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&lengths_);
    PyBuffer_Release(&order_);
    PyBuffer_Release(&out_);
    PyBuffer_Release(&ptr_);
    if (failed)
        return PyErr_NoMemory();
    if (uneven) {
        PyErr_SetString(PyExc_ValueError, "the columns do not have a place for every sequence, or a limit is not positive");
        return NULL;
    }
    return PyLong_FromSsize_t(fits ? rows : -1);
}

/* is_order(order) -> whether it holds each of 0 to its length - 1 once */
static PyObject *is_order(PyObject *self, PyObject *args)
{
    Py_buffer order_;
    if (!PyArg_ParseTuple(args, "y*", &order_))
        return NULL;
    const int32_t *order = order_.buf;
    const Py_ssize_t n = order_.len / (Py_ssize_t)sizeof(int32_t);
    uint64_t *seen = calloc(n / 64 + 1, sizeof(uint64_t));
    int is = seen != NULL;
    for (Py_ssize_t i = 0; i < n && is; i++) {
        const uint32_t one = (uint32_t)order[i];
        is = one < (size_t)n && !(seen[one >> 6] >> (one & 63) & 1);
        if (is)
            seen[one >> 6] |= 1ULL << (one & 63);
    }
    PyBuffer_Release(&order_);
    if (!seen)
        return PyErr_NoMemory();
    free(seen);
    return PyBool_FromLong(is);
}

/* first_fit(lengths, order, capacity, most, out) -> number of rows
 *
 * A tournament tree over the rows holds the largest room below each node; descending to the left whenever it has room finds the oldest
 * row. The tree doubles when the rows outgrow it. A row with `most` sequences has no room.
 */
static PyObject *first_fit(PyObject *self, PyObject *args)
{
    Py_buffer lengths_, order_, out_;
    int capacity, most;
    if (!PyArg_ParseTuple(args, "y*y*iiw*", &lengths_, &order_, &capacity, &most, &out_))
        return NULL;
    const int32_t *lengths = lengths_.buf, *order = order_.len ? order_.buf : NULL;
    int32_t *out = out_.buf;
    Py_ssize_t n = out_.len / sizeof(int32_t), leaves = 1024, rows = 0;
    int32_t *room = calloc(2 * leaves, sizeof(int32_t)), *held = calloc(leaves, sizeof(int32_t));
    int failed = !room || !held;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < n && !failed; i++) {
        int32_t sequence = order ? order[i] : (int32_t)i, length = lengths[sequence];
        Py_ssize_t node = 1;
        if (room[1] >= length) {
            while (node < leaves)
                node = 2 * node + (room[2 * node] < length);
        } else {
            if (rows == leaves) {
                int32_t *wider = calloc(4 * leaves, sizeof(int32_t)), *more = realloc(held, 2 * leaves * sizeof(int32_t));
                held = more ? more : held;
                if (!wider || !more) {
                    free(wider);
                    failed = 1;
                    break;
                }
                for (Py_ssize_t k = 0; k < leaves; k++) {
                    wider[2 * leaves + k] = room[leaves + k];
                    held[leaves + k] = 0;
                }
                leaves *= 2;
                for (Py_ssize_t k = leaves - 1; k > 0; k--)
                    wider[k] = wider[2 * k] > wider[2 * k + 1] ? wider[2 * k] : wider[2 * k + 1];
                free(room);
                room = wider;
            }
            node = leaves + rows++;
            room[node] = capacity;
        }
        Py_ssize_t row = node - leaves;
        out[i] = (int32_t)row;
        room[node] = ++held[row] == most ? 0 : room[node] - length;
        for (node /= 2; node > 0; node /= 2)
            room[node] = room[2 * node] > room[2 * node + 1] ? room[2 * node] : room[2 * node + 1];
    }
    Py_END_ALLOW_THREADS
    free(room);
    free(held);
    PyBuffer_Release(&lengths_);
    PyBuffer_Release(&order_);
    PyBuffer_Release(&out_);
    return failed ? PyErr_NoMemory() : PyLong_FromSsize_t(rows);
}

/* Raise the greatest values `best` to those of sets to which an item was added. They are in `before`: without the item, or, if it is `best`
 * itself, already with it. */
static void add_item(Py_ssize_t wide, int64_t worth, const int64_t *before, int64_t *best, Py_ssize_t places)
{
    for (Py_ssize_t at = wide; at < places && worth; at++) {
        const int64_t with = before[at - wide] + worth;
        best[at] = with > best[at] ? with : best[at];
    }
}

/* knapsack(width, value:int64, best:int64, layers)
 *
 * With one layer, best[c] becomes the greatest value of items with a total width of at most c; each item can be taken any number of times.
 * With more, best[k][c] becomes that of at most k items.
 */
static PyObject *knapsack(PyObject *self, PyObject *args)
{
    Py_buffer width_, value_, best_;
    int layers;
    if (!PyArg_ParseTuple(args, "y*y*w*i", &width_, &value_, &best_, &layers))
        return NULL;
    const int32_t *width = width_.buf;
    const int64_t *value = value_.buf;
    int64_t *best = best_.buf;
    const Py_ssize_t items = width_.len / (Py_ssize_t)sizeof(int32_t), cells = best_.len / (Py_ssize_t)sizeof(int64_t);
    int right = value_.len == items * (Py_ssize_t)sizeof(int64_t) && layers > 0 && cells % layers == 0;
    for (Py_ssize_t item = 0; item < items && right; item++)
        right = width[item] > 0 && value[item] >= 0;
    if (right) {
        Py_BEGIN_ALLOW_THREADS
        const Py_ssize_t places = cells / layers;
        memset(best, 0, places * sizeof(int64_t));
        if (layers == 1)
            for (Py_ssize_t item = 0; item < items; item++)
                add_item(width[item], value[item], best, best, places);
        for (int64_t *before = best; --layers; before += places) {
            memcpy(before + places, before, places * sizeof(int64_t));
            for (Py_ssize_t item = 0; item < items; item++)
                add_item(width[item], value[item], before, before + places, places);
        }
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&width_);
    PyBuffer_Release(&value_);
    PyBuffer_Release(&best_);
    if (!right) {
        PyErr_SetString(PyExc_ValueError, "every item needs a positive width and a value of at least 0, and layers equal places");
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"best_fit", best_fit, METH_VARARGS, "The rows of best fit, longest first."},
    {"is_order", is_order, METH_VARARGS, "Whether numbers are a permutation."},
    {"first_fit", first_fit, METH_VARARGS, "The row of every sequence, oldest row with room first."},
    {"knapsack", knapsack, METH_VARARGS, "The greatest value of every width."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "brim.plan.packing._kernel", NULL, 0, methods};

PyMODINIT_FUNC PyInit__kernel(void)
{
    return PyModuleDef_Init(&module);
}
