"""The SQLite file of the answer cache: create it, open it, check it, and say in one line what is wrong with it.

A file that is not a whole cache of this version is refused; it is never changed or removed. Pitfall: when a process
closes any handle of a file, it loses all its locks on that file. Therefore an existing cache is opened through SQLite
alone, never with `open`.
"""

import os
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

from brim.core.errors import BrimError, DamagedError, DataError, OptionError
from brim.core.temporary import beside, unwritable

FORMAT = "brim.llm-cache/1"
APPLICATION_ID = int.from_bytes(b"brim", "big")
"""Stands in the header of the file, where `file` and SQLite's own tools find it."""
BUSY_SECONDS = 30.0
"""Time for which a connection waits for other processes that write."""
SMALLEST = 512
"""SQLite takes files with fewer bytes for empty databases."""
SCHEMA = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID;
CREATE TABLE answers (key BLOB NOT NULL UNIQUE, value BLOB NOT NULL, size INTEGER NOT NULL, used INTEGER NOT NULL);
CREATE INDEX answers_by_use ON answers (used);
"""
REFUSED = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH)
WAITING = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
FAILING = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOMEM)
DAMAGE = (sqlite3.Error, KeyError, TypeError, ValueError, ArithmeticError)
"""How a damaged file shows: an error of SQLite, or values of other types and sizes than were written."""
ADVICE = "remove it, or choose another file"


def open_to_write(path: Path) -> sqlite3.Connection:
    """Open a cache for reading and writing; make it first if there is none. Only its owner can read it afterwards.

    Raises:
        OptionError: It cannot be written.
        DataError: The file is something else.
        DamagedError: It is damaged, or of another version.
    """
    if not os.path.lexists(path):
        _create(path)
    _check_kind(path)
    _narrow(path)
    try:
        connection = _connect(path, "mode=rw")
    except DAMAGE as error:
        raise file_error(path, error) from None
    try:
        # SQLite opens a file that cannot be written without saying so; only a change tells.
        _run(connection, "BEGIN IMMEDIATE", "UPDATE meta SET value = value WHERE name = 'format'", "ROLLBACK")
    except DAMAGE as error:
        connection.close()
        raise file_error(path, error) from None
    return connection


def open_to_read(path: Path) -> sqlite3.Connection:
    """Open a cache for reading. The file and its directory may be read-only.

    Raises:
        OptionError: There is no such file, or it cannot be read.
        DataError: The file is something else.
        DamagedError: It is damaged, or of another version.
    """
    if not path.exists():
        raise OptionError(f"there is no cache at {path}; check the path, or fill a cache first, in mode write")
    _check_kind(path)
    try:
        return _connect(path, "mode=ro")
    except DAMAGE as error:
        if _code(error) not in REFUSED:
            raise file_error(path, error) from None
    # SQLite wants to make files beside a cache even to read it. In a read-only directory it cannot, and does not need
    # to: with no log of recent writes (-wal), the file alone is the whole cache.
    log = Path(f"{os.path.realpath(path)}-wal")
    if log.exists() and log.stat().st_size:
        raise OptionError(
            f"cannot read the cache {path}: a killed process left recent answers in {log.name}, and the directory is "
            "read-only; open it once where it can be written"
        )
    try:
        return _connect(path, "immutable=1")
    except sqlite3.Error as error:
        raise OptionError(f"cannot read the cache {path}: {_reason(error)}") from None


def file_error(path: Path, error: Exception) -> BrimError:
    """Return the error that says what one of `DAMAGE` means to the user of a cache. Errors of ours stay as they are."""
    if isinstance(error, BrimError):
        return error
    code = _code(error)
    if code in REFUSED:
        return OptionError(
            f"cannot open or write the cache {path}: {_reason(error)}; choose another file, or only read it, with mode "
            '"read"'
        )
    if code in WAITING:
        return BrimError(f"another process has kept the cache {path} locked for {BUSY_SECONDS:g} s; wait for it to end")
    if code in FAILING:
        return BrimError(f"cannot use the cache {path}: {_reason(error)}")
    return DamagedError(f"{path} is damaged, or not a cache ({_reason(error)}); {ADVICE}")


def _create(path: Path) -> None:
    """Make an empty cache. It gets its name when it is complete, so that a kill leaves no half of a cache."""
    target = Path(os.path.realpath(path))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with beside(target) as temporary:
            os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            with closing(sqlite3.connect(temporary, isolation_level=None)) as connection:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                connection.executescript(f"BEGIN; {SCHEMA} COMMIT;")
                values = [("format", FORMAT), ("bytes", 0), ("written", 0)]
                connection.executemany("INSERT INTO meta VALUES (?, ?)", values)
            _name(temporary, target)
    except OSError as error:
        raise unwritable(path, error) from None
    except sqlite3.Error as error:
        raise file_error(path, error) from None


def _name(temporary: Path, target: Path) -> None:
    """Give a new cache its name, unless another process was faster."""
    try:
        os.link(temporary, target)
    except FileExistsError:
        pass
    except OSError:  # a file system without hard links
        if not os.path.lexists(target):
            os.rename(temporary, target)


def _check_kind(path: Path) -> None:
    try:
        about = path.stat()
    except OSError as error:
        raise OptionError(f"cannot open the cache {path}: {error.strerror}") from None
    if not stat.S_ISREG(about.st_mode):
        found = "a directory" if stat.S_ISDIR(about.st_mode) else "not a regular file"
        raise DataError(f"{path} is {found}; choose another file for the cache")
    if about.st_size < SMALLEST:
        raise DataError(f"{path} is not a cache (it has {about.st_size} bytes); {ADVICE}")


def _narrow(path: Path) -> None:
    """Take the permissions of other users away: answers may be confidential."""
    for suffix in ("", "-wal", "-shm"):
        name = Path(os.path.realpath(path) + suffix)
        try:
            if name.stat().st_mode & 0o077:
                name.chmod(0o600)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise OptionError(
                f"other users can read the cache {name}, and its permissions cannot be changed ({error.strerror}); "
                "choose another file"
            ) from None


def _connect(path: Path, how: str) -> sqlite3.Connection:
    """Open the file through SQLite and check that it is a cache of this version.

    Raises:
        sqlite3.Error: It cannot be opened, or is damaged.
        DataError: It is another database.
        DamagedError: It is of another version.
    """
    uri = f"{Path(os.path.realpath(path)).as_uri()}?{how}"
    connection = sqlite3.connect(
        uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False, cached_statements=16
    )
    try:
        _run(connection, "PRAGMA synchronous = NORMAL", "PRAGMA trusted_schema = OFF", "PRAGMA cell_size_check = ON")
        [(application,)] = connection.execute("PRAGMA application_id").fetchall()
        if application != APPLICATION_ID:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchall()  # damaged files are told apart by this
            raise DataError(f"{path} is a SQLite database, but not a cache of brim; choose another file")
        rows = connection.execute("SELECT value FROM meta WHERE name = 'format'").fetchall()
        if rows != [(FORMAT,)]:
            found = f"the format {rows[0][0]!r}" if rows else "no format"
            raise DamagedError(f"the cache {path} has {found}, and this version of brim reads {FORMAT}; {ADVICE}")
    except BaseException:
        connection.close()
        raise
    return connection


def _run(connection: sqlite3.Connection, *statements: str) -> None:
    for statement in statements:
        connection.execute(statement)


def _code(error: Exception) -> int:
    """Return SQLite's number of an error, without its finer distinctions. Values that cannot be read have none."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
