/* The inner loops of cutting microbatches and of choosing bucket edges that NumPy cannot express as whole-array operations.
 *
 * Everything here has a twin in plain Python or NumPy (brim/plan/grouping/, brim/plan/edges.py), which is the reference in the tests and
 * does the work where this file was not compiled. Arguments are checked there; buffers are int32 unless said otherwise, and are never resized.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>

/* add_bucket(offset, lift, slope, x, best, chosen:int32), all but the last int64
 *
 * One layer of the dynamic program of edges.py. On return best[j] is the least cost with up to one more bucket, and chosen[j] is where the
 * bucket before ends, or -1 if another bucket lowers nothing. The lines best[i] + lift[i] - slope[i] * x are kept as a convex hull; slopes fall and queries rise, so a cursor
 * walks it once. Crossings are compared in 128 bits.
 */
static PyObject *add_bucket(PyObject *self, PyObject *args)
{
    Py_buffer offset_, lift_, slope_, x_, best_, chosen_;
    if (!PyArg_ParseTuple(args, "y*y*y*y*w*w*", &offset_, &lift_, &slope_, &x_, &best_, &chosen_))
        return NULL;
    const int64_t *offset = offset_.buf, *lift = lift_.buf, *slope = slope_.buf, *x = x_.buf;
    int64_t *best = best_.buf;
    int32_t *chosen = chosen_.buf;
    Py_ssize_t n = chosen_.len / sizeof(int32_t), size = n * sizeof(int64_t), at = 0, lines = 0;
    int uneven = offset_.len != size || lift_.len != size || slope_.len != size || x_.len != size || best_.len != size;
    int64_t *height = malloc((n ? n : 1) * sizeof(int64_t));
    int32_t *hull = malloc((n ? n : 1) * sizeof(int32_t));
    int failed = !height || !hull;
    if (!failed && !uneven) {
        Py_BEGIN_ALLOW_THREADS
        for (Py_ssize_t j = 0; j < n; j++) {
            int64_t line = best[j] + lift[j];
            while (at + 1 < lines && height[at + 1] - slope[hull[at + 1]] * x[j] <= height[at] - slope[hull[at]] * x[j])
                at++;
            chosen[j] = -1;
            if (lines) {
                int64_t cost = height[at] - slope[hull[at]] * x[j] + offset[j];
                if (cost < best[j]) {
                    best[j] = cost;
                    chosen[j] = hull[at];
                }
            }
            while (lines - at >= 2) {
                int64_t left = height[lines - 2], left_slope = slope[hull[lines - 2]];
                if ((__int128)(line - left) * (slope[hull[lines - 1]] - left_slope) >
                    (__int128)(height[lines - 1] - left) * (slope[j] - left_slope))
                    break;
                lines--;
            }
            height[lines] = line;
            hull[lines++] = (int32_t)j;
        }
        Py_END_ALLOW_THREADS
    }
    free(height);
    free(hull);
    PyBuffer_Release(&offset_);
    PyBuffer_Release(&lift_);
    PyBuffer_Release(&slope_);
    PyBuffer_Release(&x_);
    PyBuffer_Release(&best_);
    PyBuffer_Release(&chosen_);
    if (failed)
        return PyErr_NoMemory();
    if (uneven) {
        PyErr_SetString(PyExc_ValueError, "the columns are not equally long");
        return NULL;
    }
    Py_RETURN_NONE;
}

/* The cost of a row in sixteenths: its width w, w * w / scale (nothing if the scale is 0), and `extra`. */
static inline int64_t price_of(int64_t wide, int64_t scale, int64_t extra)
{
    const int64_t square = wide * wide;
    return 16 * wide + extra + (scale ? square / scale * 16 + square % scale * 16 / scale : 0);
}

/* cut(width, bounds:int64, budget, rows, scale, extra, target, starts:int64) -> number of microbatches
 *
 * Rows of a window come widest first; each microbatch takes as many as the budget allows at the width of its first row, at most `rows`, and
 * no more than cost `target` by the price of that row, if the target is not 0. With an empty `starts`, microbatches are only counted.
 */
static PyObject *cut(PyObject *self, PyObject *args)
{
    Py_buffer width_, bounds_, starts_;
    long long budget, most, scale, extra, target;
    if (!PyArg_ParseTuple(args, "y*y*LLLLLw*", &width_, &bounds_, &budget, &most, &scale, &extra, &target, &starts_))
        return NULL;
    const int32_t *width = width_.buf;
    const int64_t *bounds = bounds_.buf, n = width_.len / (int64_t)sizeof(int32_t);
    const Py_ssize_t windows = bounds_.len / (Py_ssize_t)sizeof(int64_t) - 1, room = starts_.len / (Py_ssize_t)sizeof(int64_t);
    int64_t *starts = starts_.buf;
    Py_ssize_t count = 0;
    int right = most > 0 && scale >= 0 && extra >= 0 && target >= 0;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t window = 0; window < windows && right; window++) {
        const int64_t end = bounds[window + 1];
        right = bounds[window] >= 0 && end <= n;
        for (int64_t at = bounds[window]; at < end && right; count++) {
            right = width[at] > 0 && (room == 0 || count < room);
            if (!right)
                break;
            if (room)
                starts[count] = at;
            int64_t take = budget / width[at];
            take = take > most ? most : take;
            if (target) {
                const int64_t cheap = target / price_of(width[at], scale, extra);
                take = take > cheap ? cheap : take;
            }
            at += take < 1 ? 1 : take;
        }
    }
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&width_);
    PyBuffer_Release(&bounds_);
    PyBuffer_Release(&starts_);
    if (!right) {
        PyErr_SetString(PyExc_ValueError, "the windows do not fit the rows, or a width is not positive");
        return NULL;
    }
    return PyLong_FromSsize_t(count);
}

/* cut_levels(width, scale, extra, budget, rows, wanted:int64, capacity:int64, starts:int64) -> number of microbatches, or -1
 *
 * Cut one window. Level l is for at most capacity[l] microbatches that cost as nearly wanted[l] as possible, and no more unless they are a
 * single row; each microbatch takes the level that it misses least, and of several the one with most capacity left. -1: there are more
 * microbatches than `starts` has room for.
 */
enum { LEVELS = 64, FINENESS = 256 };

static Py_ssize_t walk_levels(const int32_t *width, Py_ssize_t n, int64_t scale, int64_t extra, int64_t budget, int64_t most,
                              const int64_t *wanted, int64_t *left, int levels, int64_t *starts, Py_ssize_t room)
{
    Py_ssize_t at = 0, count = 0;
    while (at < n) {
        if (count == room)
            return -1;
        const int64_t wide = width[at], one = price_of(wide, scale, extra);
        int64_t fits = budget / wide, missed = 0, rows = 1;
        int best = -1;
        fits = fits < 1 ? 1 : fits > most ? most : fits;
        for (int level = 0; level < levels; level++) {
            if (left[level] <= 0)
                continue;
            const int64_t target = wanted[level];
            int64_t take = target / one, by;
            take = take > fits ? fits : take;
            by = take ? (target - take * one) * FINENESS / target : FINENESS + (one - target) * FINENESS / target;
            if (best < 0 || by < missed || (by == missed && left[level] > left[best])) {
                best = level;
                missed = by;
                rows = take ? take : 1;
            }
        }
        if (best < 0)
            return -1;
        left[best]--;
        starts[count++] = at;
        at += rows;
    }
    return count;
}

static PyObject *cut_levels(PyObject *self, PyObject *args)
{
    Py_buffer width_, wanted_, capacity_, starts_;
    long long scale, extra, budget, most;
    if (!PyArg_ParseTuple(args, "y*LLLLy*y*w*", &width_, &scale, &extra, &budget, &most, &wanted_, &capacity_, &starts_))
        return NULL;
    const Py_ssize_t levels = wanted_.len / (Py_ssize_t)sizeof(int64_t), n = width_.len / (Py_ssize_t)sizeof(int32_t);
    const int64_t *wanted = wanted_.buf;
    int64_t left[LEVELS];
    Py_ssize_t count = 0;
    int right = levels > 0 && levels <= LEVELS && capacity_.len == wanted_.len && most > 0 && scale >= 0 && extra >= 0;
    for (Py_ssize_t i = 0; i < n && right; i++)
        right = ((const int32_t *)width_.buf)[i] > 0;
    for (Py_ssize_t i = 0; i < levels && right; i++) {
        right = wanted[i] > 0;
        left[i] = ((const int64_t *)capacity_.buf)[i];
    }
    if (right) {
        Py_BEGIN_ALLOW_THREADS
        count = walk_levels(width_.buf, n, scale, extra, budget, most, wanted, left, (int)levels, starts_.buf,
                            starts_.len / (Py_ssize_t)sizeof(int64_t));
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&width_);
    PyBuffer_Release(&wanted_);
    PyBuffer_Release(&capacity_);
    PyBuffer_Release(&starts_);
    if (!right) {
        PyErr_SetString(PyExc_ValueError, "widths and targets must be positive, and every target needs a capacity");
        return NULL;
    }
    return PyLong_FromSsize_t(count);
}

/* cut_priced(width, budget, rows, price, starts:int64) -> number of microbatches, or -1
 *
 * Cut one window so that the slots of all microbatches, and `price` for each, add up to least. -1: there are more microbatches than
 * `starts` has room for.
 *
 * cost[j] is the least cost of the first j rows; ending a microbatch at j that starts at i gives lines[i] + width[i] * j, a line in j, for
 * j up to end[i]. Widths fall and ends rise, so where a later start is better it stays better: each start in the queue is best
 * from `since` until the next one's. Of equally good starts the first one is taken.
 */
struct start {
    int64_t line, wide, end, since, at;
};

static Py_ssize_t walk_priced(const int32_t *width, int64_t n, int64_t budget, int64_t most, int64_t price, struct start *queue,
                              Py_ssize_t mask, int32_t *from, int64_t *starts, Py_ssize_t room)
{
    int64_t cost = 0, take = 0;
    Py_ssize_t head = 0, tail = 0, count = 0;
    for (int64_t i = 0; i < n; i++) {
        if (i == 0 || width[i] != width[i - 1]) {
            take = budget / width[i];
            take = take < 1 ? 1 : take > most ? most : take;
        }
        struct start new = {cost + price - i * width[i], width[i], i + take < n ? i + take : n, i + 1, i};
        while (head < tail) {
            const struct start *last = queue + ((tail - 1) & mask);
            const int64_t since = last->since > i + 1 ? last->since : i + 1;
            if (since > last->end || new.line + new.wide * since < last->line + last->wide * since) {
                new.since = since;
                tail--;
                continue;
            }
            new.since = last->end + 1;
            if (last->wide > new.wide) {
                const int64_t better = (new.line - last->line) / (last->wide - new.wide) + 1;
                new.since = better < new.since ? better : new.since;
            }
            break;
        }
        if (new.since <= new.end)
            queue[tail++ & mask] = new;
        while (head + 1 < tail && queue[(head + 1) & mask].since <= i + 1)
            head++;
        const struct start *best = queue + (head & mask);
        cost = best->line + best->wide * (i + 1);
        from[i + 1] = (int32_t)best->at;
    }
    for (int64_t at = n; at > 0; at = from[at])
        count++;
    if (count > room)
        return -1;
    Py_ssize_t number = count;
    for (int64_t at = n; at > 0; at = from[at])
        starts[--number] = from[at];
    return count;
}

static PyObject *cut_priced(PyObject *self, PyObject *args)
{
    Py_buffer width_, starts_;
    long long budget, most, price;
    if (!PyArg_ParseTuple(args, "y*LLLw*", &width_, &budget, &most, &price, &starts_))
        return NULL;
    const Py_ssize_t n = width_.len / (Py_ssize_t)sizeof(int32_t);
    const int32_t *width = width_.buf;
    int right = most > 0 && price > 0 && n < INT32_MAX;
    for (Py_ssize_t i = 0; i < n && right; i++)
        right = width[i] > 0 && (i == 0 || width[i] <= width[i - 1]);
    Py_ssize_t size = 2;
    if (right && n) { // a microbatch that ends behind row i starts at most as many rows before it as fit at the narrowest width
        const int64_t fits = budget / width[n - 1] < 1 ? 1 : budget / width[n - 1];
        while (size <= n && size <= most && size <= fits)
            size *= 2;
    }
    struct start *queue = malloc(size * sizeof(struct start));
    int32_t *from = malloc((n + 1) * sizeof(int32_t));
    Py_ssize_t count = 0;
    if (right && queue && from) {
        Py_BEGIN_ALLOW_THREADS
        count = walk_priced(width, n, budget, most, price, queue, size - 1, from, starts_.buf, starts_.len / (Py_ssize_t)sizeof(int64_t));
        Py_END_ALLOW_THREADS
    }
    const int failed = !queue || !from;
    free(queue);
    free(from);
    PyBuffer_Release(&width_);
    PyBuffer_Release(&starts_);
    if (!right) {
        PyErr_SetString(PyExc_ValueError, "widths must be positive and never rise, and the price must be positive");
        return NULL;
    }
    return failed ? PyErr_NoMemory() : PyLong_FromSsize_t(count);
}

static PyMethodDef methods[] = {
    {"add_bucket", add_bucket, METH_VARARGS, "One more bucket: the least cost for every end."},
    {"cut", cut, METH_VARARGS, "Where microbatches begin in sorted windows."},
    {"cut_levels", cut_levels, METH_VARARGS, "Where microbatches begin that cost as much as they should."},
    {"cut_priced", cut_priced, METH_VARARGS, "Where microbatches begin if each costs its slots and a price."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "brim.plan._kernel", NULL, 0, methods};

PyMODINIT_FUNC PyInit__kernel(void)
{
    return PyModuleDef_Init(&module);
}
