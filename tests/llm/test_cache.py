import ctypes
import gc
import os
import resource
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.core.errors import BrimError, DamagedError, DataError, OptionError
from brim.llm import cache as cache_module
from brim.llm.cache import OVERHEAD, Cache
from brim.llm.cache_file import FORMAT
from brim.llm.call import Answer, Call

texts = st.text(st.characters(codec=None, exclude_categories=()))  # halves of surrogate pairs, too
counts = st.none() | st.integers(0, 2**40)
vectors = st.none() | st.tuples(st.integers(0, 3), st.integers(1, 5)).map(
    lambda shape: np.random.default_rng(shape).standard_normal(shape).astype(np.float32)
)
answers = st.builds(
    Answer,
    text=texts,
    vectors=vectors,
    model=texts,
    finish_reason=st.none() | texts,
    prompt_tokens=counts,
    completion_tokens=counts,
)


def key(number):
    return number.to_bytes(16, "big")


def answer(number, size=20):
    return Answer(text=f"{number} ".ljust(size, "x"), model="m", finish_reason="stop", prompt_tokens=number)


def same(one, other):
    fields = ("text", "model", "finish_reason", "prompt_tokens", "completion_tokens")
    if any(getattr(one, name) != getattr(other, name) for name in fields):
        return False
    if one.vectors is None or other.vectors is None:
        return one.vectors is other.vectors
    return one.vectors.dtype == other.vectors.dtype and np.array_equal(one.vectors, other.vectors)


def filled(path, count=50, size=20):
    with Cache(path) as cache:
        for number in range(count):
            cache.put(key(number), answer(number, size))
    return path


@contextmanager
def as_nobody():
    """Let the calling thread open files as an ordinary user, because root may write everywhere."""
    if os.geteuid():
        yield
        return
    library = ctypes.CDLL(None)
    library.setfsuid(65534)
    try:
        yield
    finally:
        library.setfsuid(0)


@pytest.fixture
def open_folder():
    """A folder that other users can enter, which those of pytest are not."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)
        os.chmod(folder, 0o755)


@settings(max_examples=30, deadline=None)
@given(st.dictionaries(st.binary(min_size=16, max_size=16), answers, max_size=5))
def test_answers_come_back_as_they_were_before_and_after_the_file_is_closed(tmp_path_factory, stored):
    path = tmp_path_factory.mktemp("cache") / "c.db"
    with Cache(path) as cache:
        for one, value in stored.items():
            cache.put(one, value)
        assert all(same(cache.get(one), value) for one, value in stored.items())
        cache.flush()
        assert all(same(cache.get(one), value) for one, value in stored.items())
    with Cache(path, mode="read") as cache:
        found = cache.get_many([*stored, b"0" * 16])
        assert all(same(one, value) for one, value in zip(found[:-1], stored.values(), strict=True))
        assert found[-1] is None
        assert (cache.hits, cache.misses) == (len(stored), 1)


def test_a_vector_is_stored_as_it_was_when_it_was_put_and_can_be_written_to_when_it_is_got(tmp_path):
    vector = np.ones((1, 3), np.float32)
    with Cache(tmp_path / "c.db") as cache:
        cache.put(key(1), Answer(vectors=vector))
        vector[:] = 7
        cache.flush()
        found = cache.get(key(1)).vectors
        assert found.tolist() == [[1, 1, 1]]
        found[:] = 2
        assert cache.get(key(1)).vectors.tolist() == [[1, 1, 1]]


def test_a_later_answer_replaces_an_earlier_one(tmp_path):
    with Cache(tmp_path / "c.db") as cache:
        cache.put(key(1), answer(1, 500))
        cache.flush()
        cache.put(key(1), answer(2, 100))
        assert cache.get(key(1)).text.startswith("2 ")
        cache.flush()
        assert cache.get(key(1)).text.startswith("2 ")
        size = cache.bytes
    with Cache(tmp_path / "alone.db") as alone:
        alone.put(key(1), answer(2, 100))
        alone.flush()
        assert alone.bytes == size


def test_many_keys_are_looked_up_at_once_in_their_order(tmp_path):
    with Cache(filled(tmp_path / "c.db", 700)) as cache:
        wanted = [*range(900, 100, -1), 5, 5]
        found = cache.get_many(key(number) for number in wanted)
        assert [None if one is None else one.prompt_tokens for one in found] == [n if n < 700 else None for n in wanted]


def test_no_prompt_is_in_the_file(tmp_path):
    call = Call(model="m", messages=({"role": "user", "content": "PLANTED-PROMPT"},))
    with Cache(tmp_path / "c.db") as cache:
        cache.put(call.key(), answer(1))
    assert b"PLANTED-PROMPT" not in (tmp_path / "c.db").read_bytes()


def test_read_and_replay_change_nothing_and_off_opens_nothing(tmp_path):
    path = filled(tmp_path / "c.db")
    before = path.read_bytes()
    for mode in ("read", "replay"):
        with Cache(path, mode=mode) as cache:
            assert cache.mode == mode
            cache.put(key(1000), answer(1000))
            cache.flush()
            assert cache.get(key(1000)) is None
            assert cache.get(key(7)).prompt_tokens == 7
    assert path.read_bytes() == before
    with Cache(tmp_path / "none.db", mode="off") as cache:
        cache.put(key(1), answer(1))
        assert cache.get(key(1)) is None
        assert cache.misses == 1
    assert not (tmp_path / "none.db").exists()


def test_wrong_options_are_refused(tmp_path):
    with pytest.raises(OptionError, match=r"mode must be one of .* got 'wirte'.*Did you mean \"write\""):
        Cache(tmp_path / "c.db", mode="wirte")
    with pytest.raises(OptionError, match="max_bytes must be a positive integer, got 0"):
        Cache(tmp_path / "c.db", max_bytes=0)
    with Cache(tmp_path / "c.db") as cache, pytest.raises(OptionError, match="a key has 16 bytes, got 3"):
        cache.put(b"abc", answer(1))
    with pytest.raises(OptionError, match=r"there is no cache at .*missing\.db"):
        Cache(tmp_path / "missing.db", mode="replay")


def test_a_closed_cache_says_so_and_closing_twice_is_fine(tmp_path):
    cache = Cache(tmp_path / "c.db")
    cache.close()
    cache.close()
    for use in (lambda: cache.get(key(1)), lambda: cache.put(key(1), answer(1)), cache.flush):
        with pytest.raises(BrimError, match="is closed"):
            use()


def test_the_least_recently_used_answers_are_evicted(tmp_path):
    with Cache(tmp_path / "c.db", max_bytes=100_000) as cache:
        for number in range(1000):
            cache.put(key(number), answer(number, 900))
            if number % 10 == 0:
                cache.flush()
            assert cache.get(key(0)) is not None
        cache.flush()
        assert cache.bytes <= 100_000
        assert cache.stored == 1000
        kept = [number for number in range(1000) if cache.get(key(number)) is not None]
        assert cache.stored - cache.evicted == len(kept)
    assert kept[0] == 0, "an answer that is used all the time stays"
    assert kept[1:] == list(range(kept[1], 1000)), "the others go in the order in which they came"
    assert 80 < len(kept) < 110


def test_the_sum_of_sizes_stays_true_across_processes_and_evictions(tmp_path):
    with Cache(tmp_path / "c.db", max_bytes=20_000) as one, Cache(tmp_path / "c.db", max_bytes=20_000) as other:
        for number in range(60):
            (one, other)[number % 2].put(key(number % 40), answer(number, 10 * number))
            (one, other)[number % 2].flush()
        total = other.bytes
    with closing(sqlite3.connect(tmp_path / "c.db")) as file:
        assert file.execute("SELECT sum(size) FROM answers").fetchone() == (total,)
        assert file.execute("SELECT sum(length(value)), count(*) FROM answers").fetchone()[0] > total * 0.8
    assert total <= 20_000


def test_hits_do_not_write_each_time(tmp_path):
    path = filled(tmp_path / "c.db")
    with Cache(path) as cache:
        before = path.stat().st_mtime_ns, Path(f"{path}-wal").stat().st_size
        for _ in range(3):
            cache.get_many(key(number) for number in range(50))
        cache.flush()
        assert (path.stat().st_mtime_ns, Path(f"{path}-wal").stat().st_size) == before


def test_recency_is_written_when_many_hits_need_it_even_if_nothing_is_stored(tmp_path, monkeypatch):
    monkeypatch.setattr(cache_module, "MOST_RENEWALS", 10)
    path = filled(tmp_path / "c.db", 100, 500)
    with Cache(path, max_bytes=100_000) as cache:
        cache.get_many(key(number) for number in range(20))
        cache.flush()
    with closing(sqlite3.connect(path)) as file:
        last = file.execute("SELECT max(used) FROM answers").fetchone()
        for number in range(20):
            assert file.execute("SELECT used FROM answers WHERE key = ?", (key(number),)).fetchone() == last


def test_an_answer_larger_than_the_cache_evicts_nothing_else(tmp_path):
    with Cache(tmp_path / "c.db", max_bytes=10_000) as cache:
        cache.put(key(1), answer(1))
        cache.put(key(2), answer(2, 20_000))
        cache.flush()
        assert cache.get(key(1)) is not None
        assert cache.get(key(2)) is None
        assert (cache.stored, cache.evicted) == (1, 1)
        assert cache.bytes > OVERHEAD


def test_several_processes_fill_one_new_file_at_once(tmp_path):
    program = """
import sys
from brim.llm.cache import Cache
from brim.llm.call import Answer
start = int(sys.argv[2])
with Cache(sys.argv[1]) as cache:
    for number in range(start, start + 300):
        cache.put(number.to_bytes(16, "big"), Answer(text=f"{number}"))
        if number % 50 == 0:
            cache.flush()
"""
    path = tmp_path / "new" / "c.db"
    children = [subprocess.Popen([sys.executable, "-c", program, path, str(start)]) for start in range(0, 900, 300)]
    assert [child.wait(60) for child in children] == [0, 0, 0]
    with Cache(path, mode="replay") as cache:
        assert [one.text for one in cache.get_many(map(key, range(900)))] == [str(number) for number in range(900)]
    assert [entry.name for entry in path.parent.iterdir() if entry.name.startswith(".")] == []


def test_a_process_killed_while_writing_leaves_a_cache_with_everything_that_was_flushed(tmp_path):
    program = """
import itertools, sys
from brim.llm.cache import Cache
from brim.llm.call import Answer
cache = Cache(sys.argv[1])
for number in itertools.count():
    cache.put(number.to_bytes(16, "big"), Answer(text=f"{number}" * 200))
    if number % 100 == 99:
        cache.flush()
        print(number, flush=True)
"""
    path = tmp_path / "c.db"
    child = subprocess.Popen([sys.executable, "-c", program, path], stdout=subprocess.PIPE, text=True)
    flushed = [int(child.stdout.readline()) for _ in range(8)][-1]
    child.send_signal(signal.SIGKILL)
    child.wait()
    flushed = max([flushed, *(int(line) for line in child.stdout.read().splitlines()[:-1])])
    child.stdout.close()
    with Cache(path) as cache:
        found = cache.get_many(map(key, range(flushed + 1)))
        assert [one.text for one in found] == [str(number) * 200 for number in range(flushed + 1)]
        cache.put(key(10**6), answer(1))
    with closing(sqlite3.connect(path)) as file:
        assert file.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def handles_of(path):
    """The open file descriptors of this process that belong to a cache (on Linux)."""
    folder = Path("/proc/self/fd")
    return sorted(entry.name for entry in folder.iterdir() if os.path.realpath(entry).startswith(str(path)))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_after_a_fork_the_child_gets_an_error_and_the_parents_cache_is_unharmed(tmp_path):
    path = filled(tmp_path / "c.db")
    cache = Cache(path)
    cache.put(key(100), answer(100))
    cache.flush()
    child = os.fork()
    if not child:
        code = 1
        try:
            for use in (lambda: cache.get(key(1)), lambda: cache.put(key(1), answer(1)), cache.flush):
                with pytest.raises(BrimError, match=r"opened by process .*, before a fork; open it again"):
                    use()
            cache.close()
            handles = handles_of(path)
            assert handles
            cache._reader = cache._writer = None
            gc.collect()
            assert handles_of(path) == handles, "SQLite must not close in a child what the parent has opened"
            with Cache(path) as own:
                assert own.get(key(100)).prompt_tokens == 100
                own.put(key(200), answer(200))
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert cache.get(key(200)).prompt_tokens == 200
    cache.put(key(300), answer(300))
    cache.close()
    with Cache(path, mode="read") as again:
        assert again.get(key(300)).prompt_tokens == 300


def test_what_is_queued_when_the_interpreter_ends_is_written(tmp_path):
    program = "import sys; from brim.llm.cache import Cache; from brim.llm.call import Answer\n"
    program += "cache = Cache(sys.argv[1]); cache.put(bytes(16), Answer(text='late'))"
    subprocess.run([sys.executable, "-c", program, tmp_path / "c.db"], check=True)
    with Cache(tmp_path / "c.db", mode="read") as cache:
        assert cache.get(bytes(16)).text == "late"


def test_threads_may_share_a_cache(tmp_path):
    wrong = []

    def work(start):
        for number in range(start, start + 200):
            cache.put(key(number), answer(number))
            if cache.get(key(number)).prompt_tokens != number:
                wrong.append(number)

    with Cache(tmp_path / "c.db") as cache:
        threads = [threading.Thread(target=work, args=(start,)) for start in range(0, 800, 200)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        cache.flush()
        assert None not in cache.get_many(map(key, range(800)))
    assert not wrong


def test_only_the_owner_can_read_the_files_whatever_the_umask_and_wider_files_are_narrowed(tmp_path):
    path = tmp_path / "c.db"
    before = os.umask(0)
    try:
        for _ in range(2):
            with Cache(path) as cache:
                cache.put(key(1), answer(1))
                cache.flush()
                names = sorted(tmp_path.iterdir())
                assert [name.name for name in names] == ["c.db", "c.db-shm", "c.db-wal"]
                assert [stat.S_IMODE(name.stat().st_mode) for name in names] == [0o600] * 3
            path.chmod(0o644)
    finally:
        os.umask(before)


def test_a_link_to_a_cache_works(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "link.db").symlink_to(filled(tmp_path / "there" / "c?d#e%.db"))
    with Cache(tmp_path / "link.db") as cache:
        assert cache.get(key(3)).prompt_tokens == 3
    (tmp_path / "dangling.db").symlink_to(tmp_path / "nowhere" / "c.db")
    with pytest.raises(OptionError, match=r"dangling\.db: No such file"):
        Cache(tmp_path / "dangling.db")


@pytest.mark.parametrize("mode", ["write", "read"])
def test_files_that_are_no_caches_are_refused_and_left_as_they_are(tmp_path, mode):
    text = tmp_path / "notes.txt"
    text.write_text("these are my notes\n" * 100)
    empty = tmp_path / "empty"
    empty.touch()
    other = tmp_path / "other.db"
    with closing(sqlite3.connect(other)) as file:
        file.execute("CREATE TABLE meta (name, value)")
    newer = filled(tmp_path / "newer.db")
    with closing(sqlite3.connect(newer)) as file:
        file.execute("UPDATE meta SET value = 'brim.llm-cache/2' WHERE name = 'format'")
        file.commit()
    expected = {
        tmp_path: (DataError, "is a directory; choose another file"),
        text: (DamagedError, r"not a cache \(file is not a database\); remove it, or choose another file"),
        empty: (DataError, r"is not a cache \(it has 0 bytes\); remove it, or choose another file"),
        other: (DataError, "a SQLite database, but not a cache of brim; choose another file"),
        newer: (DamagedError, f"has the format 'brim.llm-cache/2', and this version of brim reads {FORMAT}"),
    }
    for path, (kind, message) in expected.items():
        before = path.read_bytes() if path.is_file() else b""
        with pytest.raises(kind, match=message) as error:
            Cache(path, mode=mode)
        assert str(path) in str(error.value)
        assert "\n" not in str(error.value)
        assert not path.is_file() or path.read_bytes() == before


def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="is not a regular file"):
        Cache(tmp_path / "pipe")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return filled(tmp_path_factory.mktemp("whole") / "c.db", 40, 300)


def check_damaged(path, contents):
    """Open a damaged cache, read all of it and write to it: there may be errors and misses, and no wrong answers."""
    path.write_bytes(contents)
    try:
        cache = Cache(path)
    except BrimError as error:
        assert "choose another file" in str(error)  # noqa: PT017
        return
    for number in range(40):
        try:
            found = cache.get(key(number))
        except DamagedError as error:
            assert "remove it, or choose another file" in str(error)  # noqa: PT017
        else:
            assert found is None or same(found, answer(number, 300))
    cache.put(key(41), answer(41))
    try:
        cache.close()
    except BrimError as error:
        assert "\n" not in str(error)  # noqa: PT017
    for name in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
        name.unlink(missing_ok=True)


def test_a_truncated_cache_is_refused(tmp_path, whole):
    whole = whole.read_bytes()
    last_page = len(whole) - 4096
    for size in [*range(1, 200, 13), *range(200, last_page + 1, 997), last_page]:
        (tmp_path / "c.db").write_bytes(whole[:size])
        with pytest.raises((DamagedError, DataError), match="remove it, or choose another file"):
            Cache(tmp_path / "c.db")
    for size in range(last_page + 1, len(whole), 97):
        check_damaged(tmp_path / "c.db", whole[:size])


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_flipped_bytes_never_change_an_answer(tmp_path_factory, whole, data):
    damaged = bytearray(whole.read_bytes())
    for at in data.draw(st.lists(st.integers(0, len(damaged) - 1) | st.integers(0, 200), min_size=1, max_size=20)):
        damaged[at] ^= data.draw(st.integers(1, 255))
    check_damaged(tmp_path_factory.getbasetemp() / "flipped.db", damaged)


def test_an_answer_under_the_key_of_another_is_found_out(tmp_path):
    path = filled(tmp_path / "c.db", 1)
    with closing(sqlite3.connect(path)) as file:
        file.execute("UPDATE answers SET key = ?", (key(9),))
        file.commit()
    with Cache(path) as cache, pytest.raises(DamagedError, match="checksum of an answer differs"):
        cache.get(key(9))


def test_a_read_only_directory_is_enough_to_read_and_a_clear_error_for_writing(open_folder):
    path = filled(open_folder / "c.db")
    path.chmod(0o444)
    open_folder.chmod(0o555)
    with as_nobody():
        for mode in ("read", "replay"):
            with Cache(path, mode=mode) as cache:
                assert cache.get(key(4)).prompt_tokens == 4
        with pytest.raises(OptionError, match=r"c\.db"):
            Cache(path)
        with pytest.raises(OptionError, match=r"cannot write .*new\.db: Permission denied"):
            Cache(open_folder / "new.db")
    path.chmod(0o400)
    with as_nobody(), pytest.raises(OptionError, match=r"cannot read the cache .*c\.db: unable to open"):
        if os.geteuid():
            path.chmod(0)
        Cache(path, mode="read")


def test_a_read_only_file_in_a_writable_directory_can_be_read_and_not_written(open_folder):
    path = filled(open_folder / "c.db")
    path.chmod(0o400)
    if not os.geteuid():
        os.chown(open_folder, 65534, 65534)
        os.chown(path, 65534, 65534)
    with as_nobody():
        with Cache(path, mode="read") as cache:
            assert cache.get(key(4)).prompt_tokens == 4
        with pytest.raises(OptionError, match=r'cannot open or write the cache .* or only read it, with mode "read"'):
            Cache(path)


def test_a_log_that_a_killed_process_left_in_a_read_only_directory_is_not_overlooked(open_folder):
    path = filled(open_folder / "first.db")
    with Cache(path) as cache:
        cache.put(key(99), answer(99))
        cache.flush()
        copy = open_folder / "copy.db"
        shutil.copy(path, copy)
        shutil.copy(f"{path}-wal", f"{copy}-wal")
    copy.chmod(0o444)
    open_folder.chmod(0o555)
    with as_nobody(), pytest.raises(OptionError, match=r"a killed process left recent answers in copy\.db-wal"):
        Cache(copy, mode="read")


def test_a_full_disk_costs_answers_and_no_call_and_is_told_once(tmp_path):
    cache = Cache(tmp_path / "c.db")
    cache.put(key(0), answer(0))
    cache.flush()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    try:
        for number in range(1, 100):
            cache.put(key(number), answer(number, 100_000))
        with pytest.raises(BrimError, match=r"cannot use the cache .*c\.db"):
            cache.flush()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert cache.unstored > 0
    assert cache.stored + cache.unstored == 100
    cache.put(key(100), answer(100))
    cache.close()
    with Cache(tmp_path / "c.db", mode="read") as again:
        found = [number for number in range(101) if again.get(key(number)) is not None]
        assert len(found) == cache.stored
        assert {0, 100} <= set(found)
