"""Comparisons on one machine, several processes at a time, joined into one table for each file.

    python benchmarks/study.py runs/coco-mini/fpc.toml runs/coco-mini/rpa.toml --jobs 8 \
        --results docs/results --seconds 500 --set model.weights=tf_efficientnet_lite0.safetensors

A small model leaves most of a GPU idle. Each scheme and seed of a file is a comparison of its own,
so that first stages are shared as ever, in OUT/NAME/parts; NVIDIA's MPS lets their kernels run side
by side, where it is there. What the tables in OUT/NAME have already is not trained again. With
--results the study goes on from FOLDER/NAME.csv, on any machine, and leaves its rows there while it
runs: a kill loses no more than what is being trained.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

from partlabel.compare import Comparison
from partlabel.compare.results import RESULTS, Table, read_results

TABLES = ("per_class", "priors")
CPU_KERNELS = Path(__file__).with_name("cpu_kernels.py")
_BETWEEN = 10.0  # seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, default=Path("outputs"))
    parser.add_argument("--parts", type=Path, help="folder for the runs; default: in OUT/NAME")
    parser.add_argument("--results", type=Path, help="folder of the tables that are kept")
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long")
    parser.add_argument("--cpu", action="store_true", help="with the kernels of cpu_kernels.py")
    parser.add_argument("--no-mps", action="store_true", help="leave MPS as it is")
    parser.add_argument("--set", action="append", default=[], dest="sets")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # several processes share the cores
    for file in options.files:
        take(file, options)

    def gather() -> None:
        for file in options.files:
            join(file, options)

    parts = [part for file in options.files for part in parts_of(file, options)]
    with nullcontext() if options.no_mps else mps():
        run(parts, jobs=options.jobs, seconds=options.seconds, now_and_then=gather)
    gather()
    lacking = 0
    for file in options.files:
        found = Comparison.read(file, options.sets, options.out / file.stem)
        done = len(found.results())
        print(f"{found.folder}: {done} of {len(found.cells)} cells")
        lacking += len(found.cells) - done
    if lacking:
        sys.exit(1)


def take(file: Path, options: argparse.Namespace) -> None:
    """Put the rows that are kept into the table of a file."""
    kept = options.results and options.results / f"{file.stem}.csv"
    if kept and kept.is_file():
        folder = options.out / file.stem
        folder.mkdir(parents=True, exist_ok=True)
        Table(folder).add(read_results(kept))


def parts_of(file: Path, options: argparse.Namespace) -> list[tuple[Path, list[str]]]:
    """The folder and the command of each scheme and seed that has something left to train."""
    whole = Comparison.read(file, options.sets, options.out / file.stem)
    done = {row.key for row in Table(whole.folder).rows()}
    left = [cell for cell in whole.cells if cell.key not in done]
    found = []
    for scheme, seed in dict.fromkeys((str(cell.scheme), cell.seed) for cell in left):
        folder = (options.parts or whole.folder / "parts") / file.stem
        folder = folder / f"{scheme.replace(':', '-')}-seed{seed}"
        folder.mkdir(parents=True, exist_ok=True)
        if (whole.folder / RESULTS).is_file() and not (folder / RESULTS).is_file():
            shutil.copy(whole.folder / RESULTS, folder)
        sets = [*options.sets, f'compare.schemes=["{scheme}"]', f"compare.seeds=[{seed}]"]
        program = [str(CPU_KERNELS)] if options.cpu else ["-m", "partlabel"]
        command = [sys.executable, *program, "compare", str(file), "--no-report"]
        command += ["--out", str(folder), *(word for each in sets for word in ("--set", each))]
        found.append((folder, command))
    return found


def run(
    parts: list[tuple[Path, list[str]]],
    *,
    jobs: int,
    seconds: float,
    now_and_then: Callable[[], None],
) -> None:
    """Run the commands, so many at a time; when time is up they stop as after Ctrl-C."""
    began, waiting, total = time.monotonic(), list(parts), len(parts)
    gathered = began
    running: dict[Path, subprocess.Popen[bytes]] = {}
    stopped = False
    while waiting or running:
        if not stopped and time.monotonic() - began > seconds:
            stopped, waiting = True, []
            for process in running.values():
                process.send_signal(signal.SIGINT)
        while waiting and len(running) < jobs:
            folder, command = waiting.pop(0)
            with (folder / "log.txt").open("w") as log:
                running[folder] = subprocess.Popen(command, stdout=log, stderr=log)
        for folder, process in list(running.items()):
            if process.poll() is not None:
                del running[folder]
                left = len(waiting) + len(running)
                spent = time.monotonic() - began
                name = f"{folder.parent.name}/{folder.name}"
                end = f"ended with {process.returncode}; {left} of {total} left"
                print(f"{spent:6.0f} s: {name} {end}", flush=True)
        if time.monotonic() - gathered > _BETWEEN:
            now_and_then()
            gathered = time.monotonic()
        time.sleep(0.2)


def join(file: Path, options: argparse.Namespace) -> None:
    """Bring the rows of all parts into the table of a file, and that to where it is kept."""
    folder = options.out / file.stem
    folder.mkdir(parents=True, exist_ok=True)
    for part in sorted(((options.parts or folder / "parts") / file.stem).glob("*/")):
        Table(folder).add([row for row in read_results(part) if row.key])
        for name in TABLES:
            (folder / name).mkdir(exist_ok=True)
            for each in sorted((part / name).glob("*.csv")):
                shutil.copy(each, folder / name)
    if options.results and (folder / RESULTS).is_file():
        options.results.mkdir(parents=True, exist_ok=True)
        kept = options.results / f"{file.stem}.csv"
        half = shutil.copy(folder / RESULTS, kept.with_suffix(".part"))
        half.replace(kept)  # whole whenever this is killed


@contextmanager
def mps() -> Iterator[None]:
    """NVIDIA's MPS for the processes that are started meanwhile."""
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None:
        yield
        return
    with tempfile.TemporaryDirectory() as place:
        os.environ |= {"CUDA_MPS_PIPE_DIRECTORY": place, "CUDA_MPS_LOG_DIRECTORY": place}
        subprocess.run([control, "-d"], check=True)
        try:
            yield
        finally:
            with suppress(subprocess.SubprocessError):
                subprocess.run([control], input=b"quit\n", check=True, timeout=60)


if __name__ == "__main__":
    main()
