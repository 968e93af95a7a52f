/* The step of ARC environments: one loop over the environments, one branch for the operation that was chosen.
 *
 * The definition is brim/envs/arc/engine/reference.py; the tests compare every operation with it to the bit. Grids are bytes with rows
 * of the configured width, PADDING outside of a grid. The loop changes the state in place and is reached in two ways: `step` on buffers
 * (NumPy), and `handler` on buffers of XLA, through its foreign function interface. Both pass the same list of arrays, in the order of
 * the enumeration below, and both check that each has the expected number of bytes; numbers inside a state that would lead outside of
 * an array are found before they are used.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

enum { LARGEST = 30, CELLS = LARGEST * LARGEST, PADDING = 10, OPERATIONS = 42 };
enum { RUNNING, TERMINATED, TRUNCATED };
enum { POINT, BBOX, MASK };
enum { OFF, NEXT_STEP, SAME_STEP };
enum {
    FLOOD_FILL = 10, MOVE_UP = 20, MOVE_DOWN, MOVE_LEFT, MOVE_RIGHT, ROTATE_CLOCKWISE, ROTATE_COUNTERCLOCKWISE, FLIP_HORIZONTAL,
    FLIP_VERTICAL, COPY, PASTE, CUT, CLEAR, COPY_INPUT, RESIZE, SUBMIT, NEXT_DEMO, PREVIOUS_DEMO, NEXT_TEST, PREVIOUS_TEST, RESET_PAIR,
    FIRST_UNSOLVED_DEMO, FIRST_UNSOLVED_TEST
};

/* The arrays. Those from EPISODE to TESTS_SOLVED are changed, those from REWARD on are written. */
enum {
    NUMBERS, TERMS, INPUTS, TARGETS, SIZES, FIRST, COUNT, KEY, FIXED_TASK, OPERATION, PART_A, PART_B, PART_C, PART_D, READ_ONLY,
    EPISODE = READ_ONLY, TASK, PAIR, CELLS_OF, HELD, SELECTION, HEIGHT, WIDTH, STEPS, SIMILARITY, STATUS, DEMOS_SOLVED, TESTS_SOLVED,
    REWARD, HAS_TERMINATED, WAS_TRUNCATED, SCORE, SOLVED, INVALID, LAST_PAIR, FINAL, COPY_OF_CELLS, ARRAYS
};
enum { CHANGED = REWARD - READ_ONLY };

/* What NUMBERS holds. */
enum { CANVAS_HEIGHT, CANVAS_WIDTH, FORMAT, MOST_STEPS, END_WHEN_SOLVED, AUTO_RESET, MODE, ALLOWED_LOW, ALLOWED_HIGH, NUMBERS_HELD };
/* What TERMS holds. */
enum { SIMILARITY_WEIGHT, STEP_PENALTY, SUCCESS_BONUS, UNSOLVED_PENALTY, INVALID_PENALTY, TERMS_HELD };

typedef struct {
    void *at[ARRAYS];
    int64_t bytes[ARRAYS];
    int64_t batch, tasks, pairs;
    int height, width;
} Arrays;

/* One environment while it is stepped. */
typedef struct {
    uint8_t *cells, *held;
    const uint8_t *target;
    int height, width, task, pair;
} Env;

/* The selected cells inside of what the operation may use: their rectangle, last row and column included, and one word for each row of
 * the array with bit n for column n, or NULL if all of the rectangle is selected. `any` is 0 for an empty selection. */
typedef struct {
    int any, top, left, bottom, right;
    const uint32_t *words;
} Selected;

#define I32(arrays, name) ((int32_t *)(arrays)->at[name])
#define U32(arrays, name) ((uint32_t *)(arrays)->at[name])
#define F32(arrays, name) ((float *)(arrays)->at[name])
#define U8(arrays, name) ((uint8_t *)(arrays)->at[name])

/* ---- randomness: Threefry-2x32, 20 rounds ---- */

static void threefry(const uint32_t key[2], uint32_t x, uint32_t y, uint32_t out[2])
{
    static const int rotations[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
    const uint32_t keys[3] = {key[0], key[1], key[0] ^ key[1] ^ 0x1BD11BDAu};
    x += keys[0];
    y += keys[1];
    for (uint32_t group = 0; group < 5; group++) {
        for (int i = 0; i < 4; i++) {
            const int by = rotations[group % 2][i];
            x += y;
            y = (y << by) | (y >> (32 - by));
            y ^= x;
        }
        x += keys[(group + 1) % 3];
        y += keys[(group + 2) % 3] + group + 1;
    }
    out[0] = x;
    out[1] = y;
}

static int32_t below(uint32_t word, int32_t limit)
{
    return (int32_t)(((uint64_t)word * (uint32_t)limit) >> 32);
}

/* ---- sixteen cells at a time ----
 *
 * A mask of bytes holds 255 for yes and 0 for no. Byte n of the sixteen is bit n of a word. SSE2 is part of every x86-64; elsewhere two
 * words of 64 bits do the same, byte 0 being the lowest.
 */

#if defined(__SSE2__)

typedef __m128i Sixteen;

static inline Sixteen load16(const uint8_t *from) { return _mm_loadu_si128((const __m128i *)from); }
static inline void store16(uint8_t *to, Sixteen cells) { _mm_storeu_si128((__m128i *)to, cells); }
static inline Sixteen all16(uint8_t value) { return _mm_set1_epi8((char)value); }
static inline Sixteen same16(Sixteen a, Sixteen b) { return _mm_cmpeq_epi8(a, b); }
static inline Sixteen blend16(Sixteen mask, Sixteen yes, Sixteen no)
{
    return _mm_or_si128(_mm_and_si128(mask, yes), _mm_andnot_si128(mask, no));
}

/* Bit 7 of every byte. */
static inline uint32_t high_bits16(Sixteen cells) { return (uint32_t)_mm_movemask_epi8(cells); }
/* Bit 0 of every byte: a shift of pairs of bytes by 7 moves it to bit 7, and what crosses from one byte to the next stays below bit 7. */
static inline uint32_t low_bits16(Sixteen cells) { return high_bits16(_mm_slli_epi16(cells, 7)); }

/* A mask from the lowest sixteen bits: byte 0 of the word eight times and byte 1 eight times, and of each the bit of its place. */
static inline Sixteen mask16(uint32_t bits)
{
    const Sixteen places = _mm_set1_epi64x((long long)0x8040201008040201ull);
    Sixteen bytes = _mm_cvtsi32_si128((int)bits);
    bytes = _mm_unpacklo_epi8(bytes, bytes);
    bytes = _mm_unpacklo_epi16(bytes, bytes);
    bytes = _mm_shuffle_epi32(bytes, 0x50);
    return _mm_cmpeq_epi8(_mm_and_si128(bytes, places), places);
}

/* A mask is -1 where it says yes. */
static inline Sixteen count16(Sixteen counts, Sixteen mask) { return _mm_sub_epi8(counts, mask); }
static inline int total16(Sixteen counts)
{
    const Sixteen sums = _mm_sad_epu8(counts, _mm_setzero_si128());
    return _mm_cvtsi128_si32(sums) + _mm_cvtsi128_si32(_mm_srli_si128(sums, 8));
}

#else

#define EACH 0x0101010101010101ull
#define PLACES 0x8040201008040201ull

typedef struct {
    uint64_t low, high;
} Sixteen;

static inline uint64_t load8(const uint8_t *from)
{
    uint64_t cells = 0;
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    memcpy(&cells, from, 8);
#else
    for (int i = 0; i < 8; i++)
        cells |= (uint64_t)from[i] << 8 * i;
#endif
    return cells;
}

static inline void store8(uint8_t *to, uint64_t cells)
{
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    memcpy(to, &cells, 8);
#else
    for (int i = 0; i < 8; i++)
        to[i] = (uint8_t)(cells >> 8 * i);
#endif
}

/* 255 where a byte is 0. Adding 127 to its lower seven bits sets bit 7 unless they are 0, and no carry leaves a byte. */
static inline uint64_t zero8(uint64_t cells)
{
    const uint64_t lower = 127 * EACH;
    return (~(((cells & lower) + lower) | cells | lower) >> 7) * 255;
}

static inline uint64_t blend8(uint64_t mask, uint64_t yes, uint64_t no) { return (mask & yes) | (~mask & no); }
/* Bit 0 of every byte: the product moves that of byte n to bit n of the uppermost byte. */
static inline uint32_t low_bits8(uint64_t cells) { return (uint32_t)(((cells & EACH) * 0x0102040810204080ull) >> 56); }
static inline uint64_t mask8(uint32_t bits) { return ~zero8(((bits & 255) * EACH) & PLACES); }
/* Sum of eight bytes: sums of two do not overflow 16 bits, and the product adds the four of them in the uppermost 16 bits. */
static inline int total8(uint64_t counts)
{
    const uint64_t every_other = 0x00ff00ff00ff00ffull;
    return (int)((((counts & every_other) + (counts >> 8 & every_other)) * 0x0001000100010001ull) >> 48);
}

static inline Sixteen load16(const uint8_t *from) { return (Sixteen){load8(from), load8(from + 8)}; }
static inline void store16(uint8_t *to, Sixteen cells)
{
    store8(to, cells.low);
    store8(to + 8, cells.high);
}
static inline Sixteen all16(uint8_t value) { return (Sixteen){value * EACH, value * EACH}; }
static inline Sixteen same16(Sixteen a, Sixteen b) { return (Sixteen){zero8(a.low ^ b.low), zero8(a.high ^ b.high)}; }
static inline Sixteen blend16(Sixteen mask, Sixteen yes, Sixteen no)
{
    return (Sixteen){blend8(mask.low, yes.low, no.low), blend8(mask.high, yes.high, no.high)};
}
static inline uint32_t low_bits16(Sixteen cells) { return low_bits8(cells.low) | low_bits8(cells.high) << 8; }
static inline uint32_t high_bits16(Sixteen cells) { return low_bits16((Sixteen){cells.low >> 7, cells.high >> 7}); }
static inline Sixteen mask16(uint32_t bits) { return (Sixteen){mask8(bits), mask8(bits >> 8)}; }
static inline Sixteen count16(Sixteen counts, Sixteen mask)
{
    return (Sixteen){counts.low + (mask.low & EACH), counts.high + (mask.high & EACH)};
}
static inline int total16(Sixteen counts) { return total8(counts.low) + total8(counts.high); }

#endif

/* ---- rows ---- */

/* Copy `count` bytes, 1 to 32 of them, as two blocks that overlap unless the count is a power of two. Both are read before one is written,
 * so `to` and `from` may overlap as well. */
static inline void copy_bytes(uint8_t *to, const uint8_t *from, int count)
{
    if (count >= 16) {
        const Sixteen first = load16(from), last = load16(from + count - 16);
        store16(to, first);
        store16(to + count - 16, last);
    } else if (count >= 8) {
        uint64_t first, last;
        memcpy(&first, from, 8);
        memcpy(&last, from + count - 8, 8);
        memcpy(to, &first, 8);
        memcpy(to + count - 8, &last, 8);
    } else if (count >= 4) {
        uint32_t first, last;
        memcpy(&first, from, 4);
        memcpy(&last, from + count - 4, 4);
        memcpy(to, &first, 4);
        memcpy(to + count - 4, &last, 4);
    } else {
        const uint8_t first = from[0], middle = from[count / 2], last = from[count - 1];
        to[0] = first;
        to[count / 2] = middle;
        to[count - 1] = last;
    }
}

/* A row of an array: its first sixteen cells and its last sixteen, which overlap, so that nothing outside of the row is touched. A row of
 * fewer than sixteen cells is in both, followed by zeros. */
typedef struct {
    Sixteen first, last;
} Row;

static inline Row load_row(const uint8_t *from, int width)
{
    if (width >= 16)
        return (Row){load16(from), load16(from + width - 16)};
    uint8_t cells[16] = {0};
    copy_bytes(cells, from, width);
    return (Row){load16(cells), load16(cells)};
}

static inline void store_row(uint8_t *to, int width, Row row)
{
    if (width >= 16) {
        store16(to, row.first);
        store16(to + width - 16, row.last);
        return;
    }
    uint8_t cells[16];
    store16(cells, row.first);
    copy_bytes(to, cells, width);
}

/* The column of the first cell in the second half of a row. */
static inline int second_half(int width) { return width > 16 ? width - 16 : 0; }
static inline uint32_t columns_below(int count) { return (1u << count) - 1; } /* of at most 31 */
static inline Row all_row(uint8_t value) { return (Row){all16(value), all16(value)}; }
static inline Row mask_row(uint32_t bits, int width) { return (Row){mask16(bits), mask16(bits >> second_half(width))}; }

static inline Row blend_row(Row mask, Row yes, Row no)
{
    return (Row){blend16(mask.first, yes.first, no.first), blend16(mask.last, yes.last, no.last)};
}

/* Bits of the cells that are equal. */
static inline uint32_t same_row(Row a, Row b, int width)
{
    const uint32_t bits = high_bits16(same16(a.first, b.first)) | high_bits16(same16(a.last, b.last)) << second_half(width);
    return bits & columns_below(width);
}

/* Bits of the cells of a row that are 1. */
static inline uint32_t bits_of(const uint8_t *cells, int width)
{
    const Row row = load_row(cells, width);
    return low_bits16(row.first) | low_bits16(row.last) << second_half(width);
}

static int lowest(uint32_t bits) /* of a number that is not 0 */
{
#if defined(__GNUC__)
    return __builtin_ctz(bits);
#else
    int at = 0;
    while (!(bits >> at & 1))
        at++;
    return at;
#endif
}

static int highest(uint32_t bits)
{
#if defined(__GNUC__)
    return 31 - __builtin_clz(bits);
#else
    int at = 31;
    while (!(bits >> at & 1))
        at--;
    return at;
#endif
}

/* ---- the operations ---- */

/* Give a colour to the columns of `bits`, in rows `top` to `bottom`. */
static void fill_box(uint8_t *cells, int width, int top, int bottom, uint32_t bits, uint8_t colour)
{
    const Row mask = mask_row(bits, width), colours = all_row(colour);
    for (int row = top; row <= bottom; row++)
        store_row(cells + row * width, width, blend_row(mask, colours, load_row(cells + row * width, width)));
}

/* Give a colour to the cells of `words`, one for each row of the array. */
static void fill_words(uint8_t *cells, int width, int top, int bottom, const uint32_t *words, uint8_t colour)
{
    const Row colours = all_row(colour);
    for (int row = top; row <= bottom; row++)
        store_row(cells + row * width, width, blend_row(mask_row(words[row], width), colours, load_row(cells + row * width, width)));
}

/* The columns of the rectangle of a selection. */
static uint32_t columns_of(const Selected *on) { return columns_below(on->right + 1) & ~columns_below(on->left); }

static void fill(const Env *env, int width, const Selected *on, uint8_t colour)
{
    if (on->words)
        fill_words(env->cells, width, on->top, on->bottom, on->words, colour);
    else
        fill_box(env->cells, width, on->top, on->bottom, columns_of(on), colour);
}

/* All bits of `open` that are connected with a bit of `reached` by bits of `open`. `reached` is a part of `open`. */
static inline uint32_t spread(uint32_t reached, uint32_t open)
{
    /* Upwards: adding the lowest reached bit of a run clears the run from there on by its carry, so these bits differ from `open`. A
     * further reached bit of the same run stays 1 in the sum; it is added by itself. The carry ends above the run, outside of `open`. */
    reached |= ((reached + open) ^ open) & open;
    /* Downwards by 1, 2, 4, 8 and 16, as far as all bits in between are open. */
    for (int by = 1; by < 32 && (reached >> 1 & open & ~reached); by *= 2) {
        reached |= reached >> by & open;
        open &= open >> by;
    }
    return reached;
}

/* Each row is a word of the cells that have the colour of the first cell, and a word of those that are reached. A row takes over what the
 * row before it has reached. Sweeps down and up alternate. A sweep leaves nothing to do in its own direction, so the next one has to visit
 * only the rows that it changed and those that are changed on the way, and a sweep that changes nothing is the last. */
static int flood_fill(const Env *env, int width, int row, int column, uint8_t colour)
{
    uint32_t open[LARGEST], reached[LARGEST] = {0};
    uint8_t *cells = env->cells;
    const uint8_t before = cells[row * width + column];
    if (before == colour)
        return 0;
    const Row wanted = all_row(before);
    for (int place = 0; place < env->height; place++)
        open[place] = same_row(load_row(cells + place * width, width), wanted, width) & columns_below(env->width);
    reached[row] = spread(1u << column, open[row]);
    int top = row, bottom = row; /* rows outside of these are not reached */
    int from = row, until = row; /* the rows that the sweep before changed, in the order in which this one meets them; -1 if none */
    for (int sweep = 0; from >= 0; sweep++) {
        const int by = sweep % 2 ? -1 : 1, end = sweep % 2 ? -1 : env->height;
        /* The row of the first cell was not spread upwards yet, so the second sweep has to visit it in any case. */
        int latest = sweep ? -1 : row, earliest = latest;
        uint32_t before_it = reached[from];
        for (int place = from + by; place != end; place += by) {
            const uint32_t more = before_it & open[place] & ~reached[place];
            if (more) {
                reached[place] = spread(reached[place] | more, open[place]);
                latest = place;
                earliest = earliest < 0 ? place : earliest;
            } else if (place * by > until * by)
                break;
            before_it = reached[place];
        }
        from = latest;
        until = earliest;
        top = from >= 0 && from < top ? from : top;
        bottom = from > bottom ? from : bottom;
    }
    fill_words(cells, width, top, bottom, reached, colour);
    return 1;
}

static void move(const Env *env, int width, const Selected *on, int operation)
{
    const int across = on->right - on->left + 1;
    uint8_t kept[LARGEST];
    uint8_t *top = env->cells + on->top * width + on->left, *bottom = env->cells + on->bottom * width + on->left;
    if (operation == MOVE_UP) {
        copy_bytes(kept, top, across);
        for (uint8_t *row = top; row < bottom; row += width)
            copy_bytes(row, row + width, across);
        copy_bytes(bottom, kept, across);
    } else if (operation == MOVE_DOWN) {
        copy_bytes(kept, bottom, across);
        for (uint8_t *row = bottom; row > top; row -= width)
            copy_bytes(row, row - width, across);
        copy_bytes(top, kept, across);
    } else if (across > 1) {
        const int left = operation == MOVE_LEFT;
        for (uint8_t *row = top; row <= bottom; row += width) {
            const uint8_t wrapped = row[left ? 0 : across - 1];
            copy_bytes(left ? row : row + 1, left ? row + 1 : row, across - 1);
            row[left ? across - 1 : 0] = wrapped;
        }
    }
}

static int rotate(const Env *env, int width, const Selected *on, int clockwise)
{
    const int n = on->right - on->left + 1;
    if (on->bottom - on->top + 1 != n)
        return 0;
    uint8_t kept[CELLS], *box = env->cells + on->top * width + on->left;
    for (int row = 0; row < n; row++)
        memcpy(kept + row * n, box + row * width, n);
    for (int row = 0; row < n; row++)
        for (int column = 0; column < n; column++)
            box[row * width + column] = clockwise ? kept[(n - 1 - column) * n + row] : kept[column * n + n - 1 - row];
    return 1;
}

static inline uint64_t reversed(uint64_t eight)
{
#if defined(__GNUC__)
    return __builtin_bswap64(eight);
#else
    eight = (eight >> 8 & 0x00ff00ff00ff00ffull) | (eight & 0x00ff00ff00ff00ffull) << 8;
    eight = (eight >> 16 & 0x0000ffff0000ffffull) | (eight & 0x0000ffff0000ffffull) << 16;
    return eight >> 32 | eight << 32;
#endif
}

/* Reverse a row of 1 to 32 bytes: from 8 on as blocks of eight, which overlap and are all read before the first is written. */
static inline void reverse_bytes(uint8_t *row, int count)
{
    uint64_t blocks[4];
    if (count >= 16) {
        memcpy(&blocks[0], row, 8);
        memcpy(&blocks[1], row + 8, 8);
        memcpy(&blocks[2], row + count - 16, 8);
        memcpy(&blocks[3], row + count - 8, 8);
        for (int i = 0; i < 4; i++)
            blocks[i] = reversed(blocks[i]);
        memcpy(row, &blocks[3], 8);
        memcpy(row + 8, &blocks[2], 8);
        memcpy(row + count - 16, &blocks[1], 8);
        memcpy(row + count - 8, &blocks[0], 8);
    } else if (count >= 8) {
        memcpy(&blocks[0], row, 8);
        memcpy(&blocks[1], row + count - 8, 8);
        blocks[0] = reversed(blocks[0]);
        blocks[1] = reversed(blocks[1]);
        memcpy(row, &blocks[1], 8);
        memcpy(row + count - 8, &blocks[0], 8);
    } else
        for (int left = 0, right = count - 1; left < right; left++, right--) {
            const uint8_t cell = row[left];
            row[left] = row[right];
            row[right] = cell;
        }
}

static void flip(const Env *env, int width, const Selected *on, int horizontal)
{
    const int across = on->right - on->left + 1;
    uint8_t kept[LARGEST];
    uint8_t *top = env->cells + on->top * width + on->left, *bottom = env->cells + on->bottom * width + on->left;
    if (horizontal) {
        for (uint8_t *row = top; row <= bottom; row += width)
            reverse_bytes(row, across);
        return;
    }
    for (; top < bottom; top += width, bottom -= width) {
        copy_bytes(kept, top, across);
        copy_bytes(top, bottom, across);
        copy_bytes(bottom, kept, across);
    }
}

/* Copying and pasting move rows sideways: a whole row is read from another column on, and its bits leave out what that brings in from the
 * row before or after. Where there is no such row, the cells are read from a copy with room around them. */
enum { ROOM = 32 };

static void copy(const Env *env, int height, int width, const Selected *on)
{
    uint8_t last[2 * ROOM] = {0};
    const Row padding = all_row(PADDING);
    const uint32_t box = columns_of(on);
    const int rows = on->bottom - on->top + 1;
    for (int row = 0; row < rows; row++) {
        const uint32_t chosen = (on->words ? on->words[on->top + row] : box) >> on->left;
        const uint8_t *from = env->cells + (on->top + row) * width;
        if (on->top + row == height - 1)
            from = memcpy(last, from, width);
        store_row(env->held + row * width, width, blend_row(mask_row(chosen, width), load_row(from + on->left, width), padding));
    }
    memset(env->held + rows * width, PADDING, (size_t)(height - rows) * width);
}

static void paste(const Env *env, int width, const Selected *on)
{
    uint8_t first[2 * ROOM] = {0};
    const Row padding = all_row(PADDING);
    const uint32_t inside = columns_below(env->width) & ~columns_below(on->left);
    memcpy(first + ROOM, env->held, width);
    for (int row = on->top; row < env->height; row++) {
        uint8_t *to = env->cells + row * width;
        const uint8_t *held = row == on->top ? first + ROOM : env->held + (row - on->top) * width;
        const Row from = load_row(held - on->left, width);
        const uint32_t chosen = inside & ~same_row(from, padding, width);
        store_row(to, width, blend_row(mask_row(chosen, width), from, load_row(to, width)));
    }
}

static void resize(Env *env, int width, int rows, int columns)
{
    const uint32_t before = columns_below(env->width), now = columns_below(columns);
    const int both = env->height < rows ? env->height : rows;
    if (now & ~before)
        fill_box(env->cells, width, 0, both - 1, now & ~before, 0);
    if (before & ~now)
        fill_box(env->cells, width, 0, both - 1, before & ~now, PADDING);
    fill_box(env->cells, width, both, rows - 1, now, 0);
    fill_box(env->cells, width, both, env->height - 1, before, PADDING);
    env->height = rows;
    env->width = columns;
}

/* ---- the pairs ---- */

static int count_of(const Arrays *a, int task, int kind) { return I32(a, COUNT)[2 * task + kind]; }
static int first_of(const Arrays *a, int task, int kind) { return I32(a, FIRST)[2 * task + kind]; }

/* Whether a task and a pair are there and of a possible size. */
static int sound(const Arrays *a, int64_t task, int64_t pair)
{
    if (task < 0 || task >= a->tasks || pair < 0 || pair >= a->pairs)
        return 0;
    const int32_t *sizes = I32(a, SIZES) + 4 * pair;
    for (int i = 0; i < 4; i++)
        if (sizes[i] < 1 || sizes[i] > (i % 2 ? a->width : a->height))
            return 0;
    return 1;
}

static int begin_pair(const Arrays *a, Env *env, int pair)
{
    if (!sound(a, env->task, pair))
        return 0;
    const int64_t cells = (int64_t)a->height * a->width;
    env->pair = pair;
    env->height = I32(a, SIZES)[4 * pair];
    env->width = I32(a, SIZES)[4 * pair + 1];
    env->target = U8(a, TARGETS) + pair * cells;
    memcpy(env->cells, U8(a, INPUTS) + pair * cells, cells);
    return 1;
}

/* The pair that an operation chooses; -1 if there is none. */
static int choose_pair(const Arrays *a, const Env *env, int operation, uint32_t demos, uint32_t tests)
{
    if (operation == RESET_PAIR)
        return env->pair;
    const int kind = operation == NEXT_TEST || operation == PREVIOUS_TEST || operation == FIRST_UNSOLVED_TEST;
    const int first = first_of(a, env->task, kind), count = count_of(a, env->task, kind);
    if (count < 1 || count > 32)
        return -1;
    if (operation == FIRST_UNSOLVED_DEMO || operation == FIRST_UNSOLVED_TEST) {
        const uint32_t solved = kind ? tests : demos;
        for (int place = 0; place < count; place++)
            if (!(solved >> place & 1))
                return first + place;
        return -1;
    }
    const int by = operation == NEXT_DEMO || operation == NEXT_TEST ? 1 : -1;
    int place = env->pair - first;
    if (place < 0 || place >= count)
        place = by == 1 ? -1 : 0;
    return first + (place + by + count) % count;
}

/* Equal cells divided by the cells that the grid or the target has. In the rows that both have, cells that neither has are equal as
 * well: both hold PADDING. */
static float similarity(const Arrays *a, const Env *env)
{
    const int32_t *size = I32(a, SIZES) + 4 * env->pair + 2;
    const int rows = env->height < size[0] ? env->height : size[0], columns = env->width < size[1] ? env->width : size[1];
    const int widest = env->width > size[1] ? env->width : size[1], cells = rows * a->width;
    const uint8_t *grid = env->cells, *target = env->target;
    int equal = 0, at = 0;
    if (cells >= 16) {
        Sixteen counts = all16(0); /* at most 57 in each byte: 900 cells are 56 times sixteen and a rest */
        for (; at + 16 <= cells; at += 16)
            counts = count16(counts, same16(load16(grid + at), load16(target + at)));
        /* The rest is the end of the last sixteen cells, of which the others are counted already. */
        const Sixteen rest = same16(load16(grid + cells - 16), load16(target + cells - 16));
        counts = count16(counts, blend16(mask16(0xffffu << (at + 16 - cells)), rest, all16(0)));
        equal = total16(counts);
    } else
        for (; at < cells; at++)
            equal += grid[at] == target[at];
    equal -= rows * (a->width - widest);
    return (float)equal / (float)(env->height * env->width + size[0] * size[1] - rows * columns);
}

/* ---- the selection ---- */

/* Find what the action selects inside of `rows` x `columns`, and write it into the state. Returns 0 if the selection is out of range; then
 * nothing is selected. */
static int select_cells(const Arrays *a, int64_t i, int rows, int columns, Selected *on)
{
    const int32_t *numbers = I32(a, NUMBERS);
    uint32_t *words = U32(a, SELECTION) + i * a->height;
    if (numbers[FORMAT] == MASK) {
        const uint8_t *mask = U8(a, PART_A) + i * a->height * a->width;
        uint32_t all = 0, outside = 0;
        int top = a->height, bottom = 0;
        const uint32_t inner = columns_below(columns);
        for (int row = 0; row < a->height; row++) {
            const uint32_t bits = bits_of(mask + row * a->width, a->width), in = row < rows ? bits & inner : 0;
            words[row] = in;
            outside |= bits & ~in;
            all |= in;
            top = in && row < top ? row : top;
            bottom = in ? row : bottom;
        }
        if (!all)
            return !outside;
        *on = (Selected){1, top, lowest(all), bottom, highest(all), words};
        return 1;
    }
    memset(words, 0, a->height * sizeof(uint32_t));
    const int box = numbers[FORMAT] == BBOX;
    const int32_t r1 = I32(a, PART_A)[i], c1 = I32(a, PART_B)[i];
    const int32_t r2 = box ? I32(a, PART_C)[i] : r1, c2 = box ? I32(a, PART_D)[i] : c1;
    const int32_t top = r1 < r2 ? r1 : r2, left = c1 < c2 ? c1 : c2;
    int32_t bottom = r1 < r2 ? r2 : r1, right = c1 < c2 ? c2 : c1;
    if (top < 0 || left < 0 || bottom >= a->height || right >= a->width || top >= rows || left >= columns)
        return 0;
    bottom = bottom < rows ? bottom : rows - 1;
    right = right < columns ? right : columns - 1;
    *on = (Selected){1, top, left, bottom, right, NULL};
    for (int row = top; row <= bottom; row++)
        words[row] = columns_of(on);
    return 1;
}

/* ---- a step ---- */

/* Apply a valid operation. Returns whether cells may have changed; -1 if the bank is not sound. */
static int apply(const Arrays *a, int64_t i, Env *env, int operation, const Selected *on)
{
    const int width = a->width;
    const Selected whole = {1, 0, 0, env->height - 1, env->width - 1, NULL};
    if (operation < FLOOD_FILL) {
        if (on->any)
            fill(env, width, on, (uint8_t)operation);
        return on->any;
    }
    if (operation < MOVE_UP)
        return on->any && on->top == on->bottom && on->left == on->right
            && flood_fill(env, width, on->top, on->left, (uint8_t)(operation - FLOOD_FILL));
    if (operation >= NEXT_DEMO) {
        const int pair = choose_pair(a, env, operation, U32(a, DEMOS_SOLVED)[i], U32(a, TESTS_SOLVED)[i]);
        return pair < 0 ? 0 : begin_pair(a, env, pair) ? 1 : -1;
    }
    switch (operation) {
    case MOVE_UP: case MOVE_DOWN: case MOVE_LEFT: case MOVE_RIGHT:
        move(env, width, on->any ? on : &whole, operation);
        return 1;
    case ROTATE_CLOCKWISE: case ROTATE_COUNTERCLOCKWISE:
        return rotate(env, width, on->any ? on : &whole, operation == ROTATE_CLOCKWISE);
    case FLIP_HORIZONTAL: case FLIP_VERTICAL:
        flip(env, width, on->any ? on : &whole, operation == FLIP_HORIZONTAL);
        return 1;
    case COPY:
        if (on->any)
            copy(env, a->height, width, on);
        return 0;
    case CUT:
        if (on->any) {
            copy(env, a->height, width, on);
            fill(env, width, on, 0);
        }
        return on->any;
    case PASTE:
        if (on->any)
            paste(env, width, on);
        return on->any;
    case CLEAR:
        fill(env, width, on->any ? on : &whole, 0);
        return 1;
    case COPY_INPUT:
        return begin_pair(a, env, env->pair) ? 1 : -1;
    case RESIZE:
        if (on->any)
            resize(env, width, on->bottom + 1, on->right + 1);
        return on->any;
    }
    return 0; /* submitting changes no cell */
}

/* Begin the next episode. */
static int reset(const Arrays *a, int64_t i, Env *env)
{
    const int32_t *numbers = I32(a, NUMBERS);
    const int32_t episode = (int32_t)((uint32_t)I32(a, EPISODE)[i] + 1), fixed = I32(a, FIXED_TASK)[i];
    uint32_t words[2];
    threefry(U32(a, KEY) + 2 * i, (uint32_t)episode, 0, words);
    env->task = fixed >= 0 ? fixed : below(words[0], (int32_t)a->tasks);
    if (env->task >= a->tasks)
        return 0;
    const int32_t count = count_of(a, env->task, numbers[MODE]);
    if (count < 1 || !begin_pair(a, env, first_of(a, env->task, numbers[MODE]) + below(words[1], count)))
        return 0;
    memset(env->held, PADDING, (size_t)a->height * a->width);
    memset(U32(a, SELECTION) + i * a->height, 0, a->height * sizeof(uint32_t));
    I32(a, EPISODE)[i] = episode;
    I32(a, STEPS)[i] = 0;
    I32(a, STATUS)[i] = RUNNING;
    F32(a, SIMILARITY)[i] = similarity(a, env);
    U32(a, DEMOS_SOLVED)[i] = 0;
    U32(a, TESTS_SOLVED)[i] = 0;
    return 1;
}

static void keep(const Arrays *a, int64_t i, const Env *env)
{
    I32(a, TASK)[i] = env->task;
    I32(a, PAIR)[i] = env->pair;
    I32(a, HEIGHT)[i] = env->height;
    I32(a, WIDTH)[i] = env->width;
}

static void report(const Arrays *a, int64_t i, float reward, int invalid)
{
    const float score = F32(a, SIMILARITY)[i];
    F32(a, REWARD)[i] = reward;
    F32(a, SCORE)[i] = score;
    U8(a, HAS_TERMINATED)[i] = I32(a, STATUS)[i] == TERMINATED;
    U8(a, WAS_TRUNCATED)[i] = I32(a, STATUS)[i] == TRUNCATED;
    U8(a, SOLVED)[i] = score == 1.0f;
    U8(a, INVALID)[i] = (uint8_t)invalid;
    I32(a, LAST_PAIR)[i] = I32(a, PAIR)[i];
}

/* Step environment `i`. Returns 0 if its state or the bank is not sound. */
static int step_one(const Arrays *a, int64_t i)
{
    const int32_t *numbers = I32(a, NUMBERS);
    const float *terms = F32(a, TERMS);
    const int64_t cells = (int64_t)a->height * a->width;
    Env env = {U8(a, CELLS_OF) + i * cells, U8(a, HELD) + i * cells, NULL, I32(a, HEIGHT)[i], I32(a, WIDTH)[i], I32(a, TASK)[i], I32(a, PAIR)[i]};
    if (I32(a, STATUS)[i] != RUNNING) {
        if (numbers[AUTO_RESET] == NEXT_STEP) {
            if (!reset(a, i, &env))
                return 0;
            keep(a, i, &env);
        }
        report(a, i, 0, 0);
        if (numbers[AUTO_RESET] == SAME_STEP)
            memcpy(U8(a, FINAL) + i * cells, env.cells, cells);
        return 1;
    }
    if (!sound(a, env.task, env.pair) || env.height < 1 || env.height > a->height || env.width < 1 || env.width > a->width)
        return 0;
    env.target = U8(a, TARGETS) + env.pair * cells;
    const float before = env.pair < first_of(a, env.task, 1) ? F32(a, SIMILARITY)[i] : 0;

    const int32_t operation = I32(a, OPERATION)[i];
    const uint64_t allowed = (uint32_t)numbers[ALLOWED_LOW] | (uint64_t)(uint32_t)numbers[ALLOWED_HIGH] << 32;
    int valid = operation >= 0 && operation < OPERATIONS && (allowed >> operation & 1);
    Selected on = {0};
    if (valid && (operation < COPY_INPUT || operation == RESIZE)) {
        const int anywhere = operation == RESIZE;
        valid = select_cells(a, i, anywhere ? a->height : env.height, anywhere ? a->width : env.width, &on);
    } else
        memset(U32(a, SELECTION) + i * a->height, 0, a->height * sizeof(uint32_t));
    if (valid) {
        const int changed = apply(a, i, &env, operation, &on);
        if (changed < 0)
            return 0;
        if (changed)
            F32(a, SIMILARITY)[i] = similarity(a, &env);
    }
    keep(a, i, &env);

    const float score = F32(a, SIMILARITY)[i];
    const int solved = score == 1.0f, tests = first_of(a, env.task, 1), on_test = env.pair >= tests;
    if (solved) {
        const int place = env.pair - (on_test ? tests : first_of(a, env.task, 0));
        U32(a, on_test ? TESTS_SOLVED : DEMOS_SOLVED)[i] |= 1u << (place & 31);
    }
    const int ends = (valid && operation == SUBMIT) || (solved && numbers[END_WHEN_SOLVED]);
    const int32_t steps = ++I32(a, STEPS)[i];
    I32(a, STATUS)[i] = ends ? TERMINATED : steps >= numbers[MOST_STEPS] ? TRUNCATED : RUNNING;
    float reward = terms[SIMILARITY_WEIGHT] * ((on_test ? 0 : score) - before) + terms[STEP_PENALTY];
    reward += ends ? terms[solved ? SUCCESS_BONUS : UNSOLVED_PENALTY] : 0.0f;
    reward += valid ? 0.0f : terms[INVALID_PENALTY];
    report(a, i, reward, !valid);
    if (numbers[AUTO_RESET] == SAME_STEP) {
        memcpy(U8(a, FINAL) + i * cells, env.cells, cells);
        if (I32(a, STATUS)[i] != RUNNING) {
            if (!reset(a, i, &env))
                return 0;
            keep(a, i, &env);
        }
    }
    return 1;
}

/* Check the arrays and step every environment. Returns NULL, or what is wrong. */
static const char *step_all(Arrays *a)
{
    if (a->bytes[NUMBERS] != NUMBERS_HELD * 4 || a->bytes[TERMS] != TERMS_HELD * 4)
        return "the numbers of the configuration are not those that this kernel reads";
    const int32_t *numbers = I32(a, NUMBERS);
    a->height = numbers[CANVAS_HEIGHT];
    a->width = numbers[CANVAS_WIDTH];
    if (a->height < 1 || a->height > LARGEST || a->width < 1 || a->width > LARGEST || (numbers[MODE] & ~1))
        return "the size of the grids is out of range";
    const int64_t cells = (int64_t)a->height * a->width, b = a->batch = a->bytes[STATUS] / 4;
    a->tasks = a->bytes[FIRST] / 8;
    a->pairs = a->bytes[SIZES] / 16;
    const int masks = numbers[FORMAT] == MASK, box = numbers[FORMAT] == BBOX, copies = a->bytes[COPY_OF_CELLS] > 0;
    const int64_t wanted[ARRAYS] = {
        [NUMBERS] = NUMBERS_HELD * 4, [TERMS] = TERMS_HELD * 4,
        [INPUTS] = a->pairs * cells, [TARGETS] = a->pairs * cells, [SIZES] = a->pairs * 16, [FIRST] = a->tasks * 8, [COUNT] = a->tasks * 8,
        [KEY] = b * 8, [FIXED_TASK] = b * 4, [OPERATION] = b * 4,
        [PART_A] = masks ? b * cells : b * 4, [PART_B] = masks ? 0 : b * 4, [PART_C] = box ? b * 4 : 0, [PART_D] = box ? b * 4 : 0,
        [EPISODE] = b * 4, [TASK] = b * 4, [PAIR] = b * 4, [CELLS_OF] = b * cells, [HELD] = b * cells, [SELECTION] = b * a->height * 4,
        [HEIGHT] = b * 4, [WIDTH] = b * 4, [STEPS] = b * 4, [SIMILARITY] = b * 4, [STATUS] = b * 4, [DEMOS_SOLVED] = b * 4, [TESTS_SOLVED] = b * 4,
        [REWARD] = b * 4, [HAS_TERMINATED] = b, [WAS_TRUNCATED] = b, [SCORE] = b * 4, [SOLVED] = b, [INVALID] = b, [LAST_PAIR] = b * 4,
        [FINAL] = numbers[AUTO_RESET] == SAME_STEP ? b * cells : 0, [COPY_OF_CELLS] = copies ? b * cells : 0,
    };
    if (a->tasks < 1)
        return "the bank has no tasks";
    for (int i = 0; i < ARRAYS; i++)
        if (a->bytes[i] != wanted[i])
            return "the arrays do not belong together: one has another size";
    for (int64_t i = 0; i < b; i++) {
        if (!step_one(a, i))
            return "a state refers to a task, a pair or a size that does not exist, or a task has no pair to begin with";
        if (copies)
            memcpy(U8(a, COPY_OF_CELLS) + i * cells, U8(a, CELLS_OF) + i * cells, cells);
    }
    return NULL;
}

/* step(arrays): a tuple of ARRAYS buffers, in the order above. */
static PyObject *step(PyObject *self, PyObject *given)
{
    if (!PyTuple_Check(given) || PyTuple_Size(given) != ARRAYS) {
        PyErr_SetString(PyExc_ValueError, "step takes a tuple of all arrays");
        return NULL;
    }
    Arrays a;
    Py_buffer views[ARRAYS];
    int held = 0;
    const char *wrong = NULL;
    for (; held < ARRAYS; held++) {
        const int flags = held < READ_ONLY ? PyBUF_C_CONTIGUOUS : PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE;
        if (PyObject_GetBuffer(PyTuple_GetItem(given, held), &views[held], flags) < 0)
            break;
        a.at[held] = views[held].buf;
        a.bytes[held] = views[held].len;
    }
    if (held == ARRAYS) {
        Py_BEGIN_ALLOW_THREADS
        wrong = step_all(&a);
        Py_END_ALLOW_THREADS
    }
    const int complete = held == ARRAYS;
    while (held--)
        PyBuffer_Release(&views[held]);
    if (!complete)
        return NULL;
    if (wrong) {
        PyErr_SetString(PyExc_ValueError, wrong);
        return NULL;
    }
    Py_RETURN_NONE;
}

/* ---- XLA's foreign function interface ----
 *
 * Only the parts of its binary interface that are used here, as version 0 of it lays them out; structures may grow at their ends. Each
 * begins with its size, which is checked.
 */

typedef struct Extension {
    size_t size;
    int type;
    struct Extension *next;
} Extension;

typedef struct {
    size_t size;
    Extension *extensions;
    int major, minor;
} Version;

typedef struct {
    size_t size;
    Version version;
} Metadata;

typedef struct {
    Extension base;
    Metadata *metadata;
} MetadataExtension;

typedef struct {
    size_t size;
    Extension *extensions;
    const char *message;
    int code;
} ErrorArguments;

typedef struct {
    size_t size;
    Extension *extensions;
    Version version;
    const void *internal;
    void *(*create_error)(ErrorArguments *);
} Api;

typedef struct {
    size_t size;
    Extension *extensions;
    int type;
    void *data;
    int64_t rank;
    int64_t *dims;
} Buffer;

typedef struct {
    size_t size;
    Extension *extensions;
    int64_t count;
    int *types;
    void **items;
} List;

typedef struct {
    size_t size;
    Extension *extensions;
    const Api *api;
    void *context;
    int stage;
    List arguments, results;
} CallFrame;

enum { METADATA = 1, EXECUTE = 3, IS_BUFFER = 1, INVALID_ARGUMENT = 3, MAJOR = 0, MINOR = 1 };

static void *fail(const CallFrame *frame, const char *message)
{
    ErrorArguments arguments = {sizeof(ErrorArguments), NULL, message, INVALID_ARGUMENT};
    return frame->api->create_error(&arguments);
}

/* The bytes of an element of XLA's types PRED, U8, S32, U32 and F32; 0 for any other. */
static int64_t bytes_of(int type)
{
    switch (type) {
    case 1: case 6: return 1;
    case 4: case 8: case 11: return 4;
    }
    return 0;
}

static int open_buffers(const List *list, Arrays *a, int from)
{
    for (int64_t i = 0; i < list->count; i++) {
        const Buffer *buffer = list->items[i];
        if (list->types[i] != IS_BUFFER || buffer->size < offsetof(Buffer, dims) + sizeof(int64_t *))
            return 0;
        int64_t bytes = bytes_of(buffer->type);
        if (!bytes)
            return 0;
        for (int64_t axis = 0; axis < buffer->rank; axis++)
            bytes *= buffer->dims[axis];
        a->at[from + i] = buffer->data;
        a->bytes[from + i] = bytes;
    }
    return 1;
}

/* Arguments are the arrays up to REWARD, results those from READ_ONLY on; the changed ones are both, and share their memory or are
 * copied here. */
static void *handler(CallFrame *frame)
{
    for (Extension *extension = frame->extensions; extension; extension = extension->next)
        if (extension->type == METADATA) {
            Version *version = &((MetadataExtension *)extension)->metadata->version;
            version->major = MAJOR;
            version->minor = frame->api && frame->api->version.major == MAJOR ? frame->api->version.minor : MINOR;
            return NULL;
        }
    if (frame->stage != EXECUTE)
        return NULL;
    if (frame->size < sizeof(CallFrame) || frame->arguments.count != REWARD || frame->results.count != ARRAYS - READ_ONLY)
        return fail(frame, "brim's kernel for ARC was called with another number of arrays");
    Arrays a, given;
    if (!open_buffers(&frame->arguments, &given, 0) || !open_buffers(&frame->results, &a, READ_ONLY))
        return fail(frame, "brim's kernel for ARC was called with arrays of other types");
    for (int i = 0; i < READ_ONLY; i++) {
        a.at[i] = given.at[i];
        a.bytes[i] = given.bytes[i];
    }
    for (int i = READ_ONLY; i < REWARD; i++) {
        if (a.bytes[i] != given.bytes[i])
            return fail(frame, "brim's kernel for ARC was called with results of another size than the state");
        if (a.at[i] != given.at[i])
            memcpy(a.at[i], given.at[i], a.bytes[i]);
    }
    const char *wrong = step_all(&a);
    return wrong ? fail(frame, wrong) : NULL;
}

/* ffi_handler() -> a capsule with the address of the handler, as JAX registers it. */
static PyObject *ffi_handler(PyObject *self, PyObject *nothing)
{
    return PyCapsule_New((void *)(uintptr_t)&handler, "xla._CUSTOM_CALL_TARGET", NULL);
}

static PyMethodDef methods[] = {
    {"step", step, METH_O, "Step every environment, in place."},
    {"ffi_handler", ffi_handler, METH_NOARGS, "The handler that JAX registers."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "brim.envs.arc.engine._kernel", NULL, 0, methods};

PyMODINIT_FUNC PyInit__kernel(void)
{
    return PyModuleDef_Init(&module);
}
