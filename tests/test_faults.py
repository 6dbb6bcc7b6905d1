"""Whatever happens while a store is written, the old one stays; what is left over is cleaned up."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from partlabel import folder as folders
from partlabel.errors import PartlabelError, StoreError
from partlabel.folder import new_folder
from partlabel.readers import import_labels
from partlabel.store import LabelStore
from partlabel.tables import ClassTable, ImageTable

pytestmark = pytest.mark.slow  # the whole file: many processes, many bytes

WAIT = 30.0  # seconds until a process that should have got somewhere is given up

# A command line that stops at a chosen point, says so, and waits there to be ended.
STOPPING = """
import signal, sys, time
import numpy
import partlabel.cli, partlabel.folder, partlabel.readers.scan_csv, partlabel.tables

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored below "pytest &"
point, mark = sys.argv[1:3]
del sys.argv[1:3]

def stop():
    open(mark, "w").close()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        time.sleep(0.02)
    sys.exit("nobody came")

def stopping(function, when=lambda *arguments: True, before=True):
    def wrapped(*arguments, **options):
        if before and when(*arguments):
            stop()
        result = function(*arguments, **options)
        if when(*arguments):
            stop()
        return result
    return wrapped

folder = partlabel.folder
if point == "reading":
    each = stopping(partlabel.readers.scan_csv.CsvFile.each)
    partlabel.readers.scan_csv.CsvFile.each = each
elif point == "classes":
    partlabel.tables.ClassTable.write = stopping(partlabel.tables.ClassTable.write, before=False)
elif point in ("indptr.npy", "codes.npy"):
    named = lambda file, array: str(file).endswith(point)
    numpy.save = stopping(numpy.save, named, before=False)
elif point == "flush":
    folder._flush = stopping(folder._flush)
elif point == "before the swap":
    folder._exchange = stopping(folder._exchange)
elif point == "after the swap":
    folder._exchange = stopping(folder._exchange, before=False)
elif point == "between the renames":
    folder._exchange = lambda first, second: False
    rename = folder.Path.rename
    folder.Path.rename = stopping(rename, lambda a, b: str(a).endswith(".tmp"))
else:
    sys.exit("no such point")
partlabel.cli.main()
"""
WRITING = ["classes", "indptr.npy", "codes.npy", "flush", "before the swap"]


# ---------------------------------------------------------------------------------- helpers


def made(images: int, *, first: int = 0, classes: int = 2) -> LabelStore:
    """A store whose labels tell it from every other: image i has class i mod classes."""
    ids = np.arange(first, first + images, dtype=np.int64)
    return LabelStore(
        ClassTable([f"c{first}-{i}" for i in range(classes)]),
        ImageTable.make(ids, template="{id}.jpg"),
        indptr=np.arange(images + 1, dtype=np.int64),
        codes=(ids % classes).astype(np.uint16),
    )


def content(path: Path) -> tuple[Any, ...]:
    """All there is to know about a store."""
    store = LabelStore.open(path)
    return (
        store.classes.ids,
        tuple(store.images.ids.tolist()),
        store.indptr.tolist(),
        store.codes.tolist(),
    )


def left_over(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir() if entry.name.startswith("."))


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A store that must survive, beside a csv that would replace it."""
    made(3).save(tmp_path / "s.labels")
    write_csv(tmp_path / "new.csv", 50)
    return tmp_path / "s.labels"


def write_csv(path: Path, images: int) -> None:
    rows = "".join(f"{i}.jpg,c{i % 7},{i % 2}\n" for i in range(images))
    path.write_text("image_id,label,value\n" + rows)


IMPORT = ("import", "table", "new.csv", "--layout", "long", "-o", "s.labels", "--overwrite")


def import_over(path: Path) -> LabelStore:
    """What the user does next."""
    sources = [str(path.parent / "new.csv")]
    import_labels("table", sources, out=path, layout="long", overwrite=True)
    return LabelStore.open(path)


@contextmanager
def stopped_at(point: str, folder: Path, arguments: tuple[str, ...] = IMPORT) -> Iterator[Any]:
    """A command that has come to ``point`` and waits there; ended at the latest at the end."""
    mark = folder / "mark"
    process = subprocess.Popen(
        [sys.executable, "-c", STOPPING, point, str(mark), *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + WAIT
        while not mark.exists():
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < deadline, f"never came to {point!r}"
            time.sleep(0.02)
        yield process
    finally:
        process.kill()
        process.communicate(timeout=WAIT)
        mark.unlink(missing_ok=True)


def run(folder: Path, *arguments: str, code: str | None = None) -> Any:
    start = ["-m", "partlabel"] if code is None else ["-c", code]
    return subprocess.run(
        [sys.executable, "-B", *start, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=WAIT,
        check=False,
    )


def assert_one_line(text: str, *parts: str) -> None:
    assert "Traceback" not in text
    lines = text.splitlines()
    assert len(lines) == 1, text
    assert lines[0].startswith("error: ")
    for part in parts:
        assert part in lines[0]


# ------------------------------------------------------------------------ what is in the way


def test_existing_store_is_refused(old: Path) -> None:
    before = content(old)
    with pytest.raises(StoreError, match=r"s\.labels exists; choose another --out or add --over"):
        made(5, first=10).save(old)
    assert content(old) == before
    assert left_over(old.parent) == []


def test_existing_store_is_refused_before_any_reading(old: Path) -> None:
    with pytest.raises(StoreError, match=r"s\.labels exists"):
        import_labels("table", ["no such file.csv"], out=old, layout="long")


def test_existing_store_is_replaced(old: Path) -> None:
    new = made(5, first=10)
    new.save(old, overwrite=True)
    new.save(old.with_name("twin.labels"))
    assert content(old) == content(old.with_name("twin.labels"))
    assert left_over(old.parent) == []


def test_replaced_store_has_no_file_of_the_old_one(old: Path) -> None:
    (old / "extra.bin").write_bytes(b"of the old store")
    made(5).save(old, overwrite=True)
    assert not (old / "extra.bin").exists()


@pytest.mark.parametrize("what", ["file", "folder", "empty folder", "dangling link"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_what_is_no_store_is_never_replaced(what: str, overwrite: bool, tmp_path: Path) -> None:
    path = tmp_path / "precious"
    if what == "file":
        path.write_text("precious")
    elif what == "dangling link":
        path.symlink_to(tmp_path / "nowhere")
    else:
        path.mkdir()
        if what == "folder":
            (path / "thesis.tex").write_text("precious")
    kind = "exists and is not a label store" if overwrite else "exists"
    with pytest.raises(StoreError, match=kind):
        made(3).save(path, overwrite=overwrite)
    assert os.path.lexists(path)
    if what == "file":
        assert path.read_text() == "precious"
    if what == "folder":
        assert (path / "thesis.tex").read_text() == "precious"
    assert left_over(tmp_path) == []


def test_link_to_a_store_can_be_overwritten(old: Path) -> None:
    link = old.with_name("link.labels")
    link.symlink_to(old.name)
    made(5, first=10).save(link, overwrite=True)
    assert len(LabelStore.open(link)) == 5
    assert len(LabelStore.open(old)) in (3, 5)
    assert left_over(old.parent) == []


def test_layer_in_the_way_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("Path,Sex,Edema\np/1.jpg,M,1.0\n")
    made(3).save(tmp_path / "x.uncertain.labels")
    before = content(tmp_path / "x.uncertain.labels")
    with pytest.raises(StoreError, match=r"x\.uncertain\.labels exists"):
        import_labels("chexpert", [str(tmp_path / "train.csv")], out=tmp_path / "x.labels")
    assert not (tmp_path / "x.labels").exists()
    assert content(tmp_path / "x.uncertain.labels") == before


def test_store_that_appears_while_another_is_written_is_not_lost(tmp_path: Path) -> None:
    """Two imports into one new folder: the later one has no leave to overwrite the earlier."""
    path = tmp_path / "s.labels"
    made(5, first=10).save(tmp_path / "other.labels")
    with pytest.raises(StoreError), new_folder(path, overwrite=False) as temporary:  # noqa: PT012
        shutil.copytree(tmp_path / "other.labels", temporary, dirs_exist_ok=True)
        shutil.copytree(tmp_path / "other.labels", path)
        (path / "mine").write_text("mine")
    assert (path / "mine").exists()


def test_open_store_keeps_its_labels_when_it_is_replaced(old: Path) -> None:
    store = LabelStore.open(old)
    before = store.dense([0, 1, 2]).tolist()
    made(5, first=10).save(old, overwrite=True)
    assert store.dense([0, 1, 2]).tolist() == before
    assert len(store) == 3


def test_open_store_never_gives_the_images_of_its_replacement(old: Path) -> None:
    """The image table is read late; by then the path may lead to another store."""
    store = LabelStore.open(old)
    made(3, first=10).save(old, overwrite=True)
    try:
        ids = store.images.ids.tolist()
    except StoreError:
        return
    assert ids == [0, 1, 2]


def test_open_while_it_is_replaced_gives_one_store_or_the_other(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Classes of the one with labels of the other would be wrong without anybody noticing."""
    new = made(3, first=11)
    new.save(old.with_name("twin.labels"))
    whole = [content(old), content(old.with_name("twin.labels"))]
    read = ClassTable.read

    def replaced_meanwhile(path: Path) -> ClassTable:
        table = read(path)
        monkeypatch.setattr(ClassTable, "read", read)
        new.save(old, overwrite=True)
        return table

    monkeypatch.setattr(ClassTable, "read", replaced_meanwhile)
    assert content(old) in whole


# ------------------------------------------------------------------------------------- killed


@pytest.mark.parametrize("point", WRITING)
def test_kill_while_writing_leaves_the_old_store(point: str, old: Path) -> None:
    before = content(old)
    with stopped_at(point, old.parent) as process:
        assert len(left_over(old.parent)) == 1  # it was in the middle
        process.send_signal(signal.SIGKILL)
        assert process.wait(WAIT) == -signal.SIGKILL
    assert len(left_over(old.parent)) == 1  # nobody could clean up
    assert content(old) == before
    assert len(import_over(old)) == 50
    assert left_over(old.parent) == []


def test_kill_after_the_swap_leaves_the_new_store(old: Path) -> None:
    with stopped_at("after the swap", old.parent) as process:
        process.send_signal(signal.SIGKILL)
        assert process.wait(WAIT) == -signal.SIGKILL
    assert len(LabelStore.open(old)) == 50
    assert len(left_over(old.parent)) == 1  # the old one
    assert len(import_over(old)) == 50
    assert left_over(old.parent) == []


@pytest.mark.parametrize("point", ["classes", "codes.npy", "flush"])
def test_kill_while_writing_a_first_store_leaves_none(point: str, old: Path) -> None:
    shutil.rmtree(old)
    with stopped_at(point, old.parent) as process:
        process.send_signal(signal.SIGKILL)
        process.wait(WAIT)
    assert not old.exists()
    with pytest.raises(StoreError, match="no such store"):
        LabelStore.open(old)
    assert len(import_over(old)) == 50
    assert left_over(old.parent) == []


LOOP = """
import sys, numpy as np
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.test_faults import made
path = Path(sys.argv[2])
small, large = made(3), made(2000, first=10)
while True:
    large.save(path, overwrite=True)
    small.save(path, overwrite=True)
    print("x", flush=True)
"""


@pytest.mark.slow
def test_kill_at_any_time_leaves_one_store_or_the_other(tmp_path: Path) -> None:
    path = tmp_path / "s.labels"
    whole = []
    for name, store in (("a", made(3)), ("b", made(2000, first=10))):
        store.save(tmp_path / f"{name}.labels")
        whole.append(content(tmp_path / f"{name}.labels"))
    made(3).save(path)
    root = str(Path(__file__).parents[1])
    for turn in range(6):
        process = subprocess.Popen(
            [sys.executable, "-c", LOOP, root, str(path)], stdout=subprocess.PIPE
        )
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"x\n"  # it writes
            time.sleep(0.013 * turn)
        finally:
            process.kill()
            process.communicate(timeout=WAIT)
        assert content(path) in whole
    made(4).save(path, overwrite=True)
    assert len(LabelStore.open(path)) == 4
    assert left_over(tmp_path) == []


def test_only_folders_of_dead_processes_are_removed(old: Path) -> None:
    sleeper = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait(WAIT)
    host = folders._host()
    names = {
        "alive": f".s.labels.{host}.{sleeper.pid}.a1.tmp",
        "own": f".s.labels.{host}.{os.getpid()}.a1.tmp",  # another thread of this process
        "dead": f".s.labels.{host}.{dead.pid}.a1.tmp",
        "another store": f".other.labels.{host}.{dead.pid}.a1.tmp",
        "another machine": f".s.labels.far{host}.{dead.pid}.a1.tmp",
        "no number": f".s.labels.{host}.x.a1.tmp",
        "user's": ".s.labels.notes",
    }
    try:
        for name in names.values():
            (old.parent / name).mkdir()
        import_over(old)
    finally:
        sleeper.communicate(timeout=WAIT)
    assert set(left_over(old.parent)) == set(names.values()) - {names["dead"]}


# ------------------------------------------------------------------------- asked to end


@pytest.mark.parametrize("point", ["reading", "classes", "codes.npy", "flush"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_leaves_nothing_behind(number: int, point: str, old: Path) -> None:
    before = content(old)
    with stopped_at(point, old.parent) as process:
        process.send_signal(number)
        out, err = process.communicate(timeout=WAIT)
    assert process.returncode == 128 + number
    assert out == ""
    if number == signal.SIGINT:
        assert_one_line(err, "interrupted", "untouched")
    else:
        assert "Traceback" not in err
        assert len(err.splitlines()) <= 1
    assert left_over(old.parent) == []
    assert content(old) == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_of_a_first_import_leaves_nothing_at_all(number: int, old: Path) -> None:
    shutil.rmtree(old)
    with stopped_at("codes.npy", old.parent) as process:
        process.send_signal(number)
        process.communicate(timeout=WAIT)
    assert process.returncode == 128 + number
    assert sorted(entry.name for entry in old.parent.iterdir()) == ["new.csv"]


def test_interrupt_once_the_new_store_is_in_place_is_not_said_to_have_written_nothing(
    old: Path,
) -> None:
    with stopped_at("after the swap", old.parent) as process:
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=WAIT)
    assert process.returncode == 130
    assert left_over(old.parent) == []
    replaced = len(LabelStore.open(old)) == 50
    assert replaced != ("nothing was written" in err)


# --------------------------------------------------------------------------- the disk is full


def full(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def short_write(*_: Any, **__: Any) -> None:
    raise OSError("2000 requested and 512 written")  # as numpy says it, without a number


PLACES: dict[str, Callable[[pytest.MonkeyPatch, Any], None]] = {
    "classes": lambda patch, fail: patch.setattr(ClassTable, "write", fail),
    "images": lambda patch, fail: patch.setattr(pq, "write_table", fail),
    "arrays": lambda patch, fail: patch.setattr(np, "save", fail),
    "meta": lambda patch, fail: patch.setattr(Path, "write_text", fail),
    "flush": lambda patch, fail: patch.setattr(os, "fsync", fail),
    "temporary": lambda patch, fail: patch.setattr(Path, "mkdir", fail),
}


@pytest.mark.parametrize("place", PLACES)
def test_full_disk(place: str, old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = content(old)
    with monkeypatch.context() as patch:
        PLACES[place](patch, full)
        with pytest.raises(StoreError) as caught:
            made(5).save(old, overwrite=True)
    text = str(caught.value)
    assert text.startswith(f"{old}: no space left on the disk; free some or choose another --out")
    assert "what was there before is untouched" in text
    assert content(old) == before
    assert left_over(old.parent) == []


def test_short_write(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = content(old)
    with monkeypatch.context() as patch:
        patch.setattr(np, "save", short_write)
        with pytest.raises(StoreError, match=r"s\.labels: cannot be written \(2000 requested"):
            made(5).save(old, overwrite=True)
    assert content(old) == before
    assert left_over(old.parent) == []


def test_error_that_is_not_of_the_disk_leaves_the_old_store(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("a bug")

    before = content(old)
    with monkeypatch.context() as patch:
        patch.setattr(np, "save", broken)
        with pytest.raises(RuntimeError, match="a bug"):
            made(5).save(old, overwrite=True)
    assert content(old) == before
    assert left_over(old.parent) == []


LIMITED = """
import resource, signal, sys
limit = int(sys.argv.pop(1))
from partlabel.cli import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
main()
"""


@pytest.mark.parametrize("limit", [20, 1000, 30_000])
def test_file_that_may_not_grow(limit: int, old: Path) -> None:
    """The class table, the image table, or the arrays are too large."""
    write_csv(old.parent / "new.csv", 5000)
    before = content(old)
    done = run(old.parent, str(limit), *IMPORT, code=LIMITED)
    assert done.returncode == 2
    assert done.stdout == ""
    assert_one_line(done.stderr, "s.labels: cannot be written")
    assert content(old) == before
    assert left_over(old.parent) == []


def test_limit_that_is_large_enough(old: Path) -> None:
    done = run(old.parent, str(1 << 20), *IMPORT, code=LIMITED)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(LabelStore.open(old)) == 50


def mounted(folder: Path, options: str, commands: str) -> Any:
    """Run shell commands in ``folder``/disk, a small disk that nobody else sees."""
    (folder / "disk").mkdir(exist_ok=True)
    script = f"mount -t tmpfs -o {options} tmpfs disk && cd disk && {{ {commands} }}"
    return subprocess.run(
        ["unshare", "--map-root-user", "--mount", "sh", "-c", script],
        cwd=folder,
        env=os.environ | {"PARTLABEL": f"{sys.executable} -B -m partlabel"},
        capture_output=True,
        text=True,
        timeout=WAIT,
        check=False,
    )


@pytest.fixture
def small_disk(tmp_path: Path) -> Callable[[str, str], Any]:
    """Give ``mounted``, where the system lets us mount."""
    if shutil.which("unshare") is None or mounted(tmp_path, "size=64k", ":;").returncode != 0:
        pytest.skip("no private mounts here")
    return lambda options, commands: mounted(tmp_path, options, commands)


@pytest.mark.parametrize("kibibytes", [20, 64, 88])
def test_disk_that_really_is_full(
    kibibytes: int, tmp_path: Path, small_disk: Callable[[str, str], Any]
) -> None:
    """The small store fits; of the large one the images do not, or the arrays do not."""
    write_csv(tmp_path / "few.csv", 3)
    write_csv(tmp_path / "many.csv", 5000)
    commands = """
        $PARTLABEL import table ../few.csv --layout long -o s.labels > /dev/null || exit 90
        $PARTLABEL import table ../many.csv --layout long -o s.labels --overwrite; code=$?
        $PARTLABEL info --json s.labels | grep '"images": 3' > /dev/null || exit 91
        ls -A | grep -v '^s.labels$' && exit 92
        exit $code;
    """
    done = small_disk(f"size={kibibytes}k", commands)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stdout == ""
    assert_one_line(done.stderr, "s.labels", "no space left on the disk", "untouched")


def test_disk_that_cannot_be_written(tmp_path: Path, small_disk: Callable[[str, str], Any]) -> None:
    write_csv(tmp_path / "few.csv", 3)
    command = "$PARTLABEL import table ../few.csv --layout long -o s.labels;"
    done = small_disk("ro,size=64k", command)
    assert done.returncode == 2
    assert done.stdout == ""
    assert_one_line(done.stderr, "s.labels: cannot be written", "Read-only file system")


# ------------------------------------------------------------------------------- no such place


@pytest.mark.parametrize(
    "where",
    [
        "file/s.labels",
        "file/deep/er/s.labels",
        "x" * 300,
        "x" * 250,  # its own name is short enough, that of the temporary folder is not
    ],
)
def test_place_where_nothing_can_be_written(where: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a file")
    with pytest.raises(StoreError, match="cannot be written"):
        made(3).save(tmp_path / where)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["file"]


def test_place_below_a_file_is_said_to_be_one(tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("image_id,label\na.jpg,cat\n")
    with pytest.raises(StoreError, match=r"new\.csv is a file|Not a directory|not a folder"):
        made(3).save(tmp_path / "new.csv" / "s.labels")


def test_folders_above_are_made(tmp_path: Path) -> None:
    made(3).save(tmp_path / "a" / "b" / "s.labels")
    assert len(LabelStore.open(tmp_path / "a" / "b" / "s.labels")) == 3


# ----------------------------------------------------------- systems that cannot swap folders


@pytest.fixture
def no_swap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "_exchange", lambda first, second: False)


@pytest.mark.usefixtures("no_swap")
def test_replaced_without_a_swap(old: Path) -> None:
    made(5).save(old, overwrite=True)
    assert len(LabelStore.open(old)) == 5
    assert left_over(old.parent) == []


@pytest.mark.usefixtures("no_swap")
def test_rename_that_fails_without_a_swap(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = content(old)
    rename = Path.rename

    def failing(self: Path, target: Path) -> Path:
        if self.name.endswith(".tmp"):
            raise OSError(errno.EIO, "Input/output error")
        return rename(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", failing)
        with pytest.raises(StoreError, match=r"s\.labels: cannot be written \(Input/output error"):
            made(5).save(old, overwrite=True)
    assert content(old) == before
    assert left_over(old.parent) == []


@pytest.fixture
def between(old: Path) -> Path:
    """The path of a store after a kill between the two renames."""
    with stopped_at("between the renames", old.parent) as process:
        assert not old.exists()
        process.send_signal(signal.SIGKILL)
        process.wait(WAIT)
    assert not old.exists()
    return old


def test_kill_between_the_renames_is_mended_by_open(between: Path) -> None:
    made(3).save(between.with_name("twin.labels"))
    assert content(between) == content(between.with_name("twin.labels"))
    assert len(import_over(between)) == 50
    assert left_over(between.parent) == []


def test_kill_between_the_renames_is_mended_on_the_command_line(between: Path) -> None:
    done = run(between.parent, "info", "--json", "s.labels")
    assert (done.returncode, done.stderr) == (0, "")
    assert '"images": 3' in done.stdout


def test_import_after_a_kill_between_the_renames(between: Path) -> None:
    assert len(import_over(between)) == 50
    assert left_over(between.parent) == []


def test_import_after_a_kill_between_the_renames_needs_leave_to_overwrite(between: Path) -> None:
    """The old store is only out of place: without --overwrite it must not be lost."""
    with pytest.raises(PartlabelError, match=r"s\.labels exists"):
        import_labels("table", [str(between.parent / "new.csv")], out=between, layout="long")
    assert len(LabelStore.open(between)) == 3


def test_backup_is_not_brought_back_over_a_store(old: Path) -> None:
    """A kill after both renames leaves the backup; the new store is the one."""
    made(5).save(old.parent / ".s.labels.old")
    before = content(old)
    assert content(old) == before
    assert len(LabelStore.open(old)) == 3
    import_over(old)
    assert left_over(old.parent) == []
