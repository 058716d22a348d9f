"""A run folder that explains itself, and from which a killed run goes on.

    recipe.toml                    the resolved recipe
    journal.jsonl                  what happened, in order: one JSON object a line
    metrics.jsonl                  {"stage", "step", "time", ...numbers} a line
    episodes/<stage>-<step>.jsonl  one Episode a line
    batches/<stage>-<step>.msgpack the samples a step is trained on, written before it is
    checkpoints/<name>/            see `store.checkpoint`
    evals/<name>.jsonl             one Episode a line
    artifacts/<digest>             what was graded: bytes under their hash, see `store.blobs`
    regrades/<name>.json           what other graders make of it
    summary.json, report.html      what came of it

Lines are appended durably; everything else is written whole or not at all, so that writing a step
again after a crash replaces it and never doubles it.
"""

import re
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

from practicum.core import Episode, Sample, StoreError
from practicum.store import files
from practicum.store.blobs import Blobs
from practicum.store.journal import Journal, read_lines
from practicum.store.lock import FolderLock

_FOLDERS = ("episodes", "batches", "checkpoints", "evals", "artifacts")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
T = TypeVar("T")


class Run:
    """One run folder. `create` and `open` hold it alone, for writing; `view` only reads."""

    def __init__(self, folder: Path, *, clock: Callable[[], float] | None) -> None:
        """Use `create`, `open` or `view`. Without a clock the run is read-only."""
        self.folder = folder
        self._clock = clock
        self._artifacts = Blobs(folder / "artifacts")
        self._lock: FolderLock | None = None
        self._journal: Journal | None = None
        self._metrics: Journal | None = None
        if clock is not None:
            self._lock = FolderLock(folder)
            try:
                for name in _FOLDERS:
                    with files.explained(folder):
                        (folder / name).mkdir(exist_ok=True)
                self._journal = Journal(folder / "journal.jsonl")
                self._metrics = Journal(folder / "metrics.jsonl")
            except BaseException:
                self.close()
                raise

    @classmethod
    def create(
        cls, folder: Path | str, recipe_text: str, *, clock: Callable[[], float] = time.time
    ) -> Self:
        """A new run in a new or empty folder. Raises StoreError if a run is already there."""
        folder = Path(folder)
        if (folder / "recipe.toml").exists():
            raise StoreError(
                f"{folder} already holds a run; go on with --resume, or choose another folder"
            )
        with files.explained(folder):
            folder.mkdir(parents=True, exist_ok=True)
            strangers = sorted(p.name for p in folder.iterdir() if p.name not in _OURS)
        if strangers:
            raise StoreError(
                f"{folder} is not empty (it holds {strangers[0]}); choose a new or empty folder"
            )
        run = cls(folder, clock=clock)
        try:
            files.write_atomic(folder / "recipe.toml", recipe_text.encode())
        except BaseException:
            run.close()
            raise
        return run

    @classmethod
    def open(cls, folder: Path | str, *, clock: Callable[[], float] = time.time) -> Self:
        """An existing run, to go on with it: torn last lines are cut, a second holder refused."""
        return cls(_existing(Path(folder)), clock=clock)

    @classmethod
    def view(cls, folder: Path | str) -> Self:
        """An existing run, for reading only; it may be in use by another process."""
        return cls(_existing(Path(folder)), clock=None)

    @property
    def recipe(self) -> str:
        """The resolved recipe, as TOML text."""
        return files.read_bytes(self.folder / "recipe.toml").decode()

    @property
    def checkpoints(self) -> Path:
        """Where `store.checkpoint` keeps this run's checkpoints, one folder each."""
        return self.folder / "checkpoints"

    # Lines

    def log(self, kind: str, **fields: Any) -> None:
        """Append {"kind", "time", ...fields} to the journal; durable when it returns."""
        self._writable(self._journal).append({"kind": kind, "time": self._now(), **fields})

    def journal(self, kind: str | None = None) -> list[dict[str, Any]]:
        """The journal's lines, oldest first; only those of one kind if given."""
        lines = read_lines(self.folder / "journal.jsonl")
        return [line for line in lines if kind is None or line["kind"] == kind]

    def metric(self, stage: str, step: int, **values: Any) -> None:
        """Append {"stage", "step", "time", ...values} to the metrics. NaN is written as null."""
        record = {"stage": stage, "step": step, "time": self._now(), **values}
        self._writable(self._metrics).append(record)

    def metrics(self, stage: str | None = None) -> list[dict[str, Any]]:
        """The metrics' lines, oldest first; only those of one stage if given."""
        lines = read_lines(self.folder / "metrics.jsonl")
        return [line for line in lines if stage is None or line["stage"] == stage]

    def rewind(self, stage: str, step: int) -> None:
        """Go back to the durable point (stage, step): later metrics go, to be written again.

        Later means: of this stage with a larger step, or of a stage that began after this one. Use
        step -1 for "this stage has not begun". Episodes and batches stay: each is a whole file that
        writing again replaces, and the batches after a checkpoint are what is replayed.
        """
        metrics = self._writable(self._metrics)
        lines = metrics.lines()
        order = list(dict.fromkeys(line["stage"] for line in lines))
        later = set(order[order.index(stage) + 1 :]) if stage in order else set()
        kept = [
            line
            for line in lines
            if line["stage"] not in later and (line["stage"] != stage or line["step"] <= step)
        ]
        if len(kept) != len(lines):
            metrics.rewrite(kept)
        self.log("rewind", stage=stage, step=step, dropped=len(lines) - len(kept))

    # Whole files

    def write_episodes(self, stage: str, step: int, episodes: Iterable[Episode]) -> None:
        """The episodes of one step, replacing what was there."""
        self._write_all(self._file("episodes", stage, step, "jsonl"), episodes)

    def read_episodes(self, stage: str, step: int) -> list[Episode]:
        """The episodes of one step. Raises StoreError if there are none."""
        return _read_all(self._file("episodes", stage, step, "jsonl"))

    def episode_steps(self, stage: str) -> list[int]:
        """The steps of a stage that have episodes, in order."""
        return self._steps("episodes", stage, "jsonl")

    def episode_stages(self) -> list[str]:
        """Names of all that has episodes (stages, their demonstrations), in alphabetical order."""
        names = (p.stem.rpartition("-")[0] for p in (self.folder / "episodes").glob("[!.]*.jsonl"))
        return sorted(set(names))

    def write_batch(self, stage: str, step: int, samples: Sequence[Sample]) -> None:
        """Journal what a step is about to be trained on; durable when it returns."""
        self._writable(self._journal)
        data = msgspec.msgpack.encode(list(samples))
        files.write_atomic(self._file("batches", stage, step, "msgpack"), data)

    def read_batch(self, stage: str, step: int) -> list[Sample]:
        """The samples of a step, for replay. Raises StoreError if there are none."""
        path = self._file("batches", stage, step, "msgpack")
        return _decoded(path, msgspec.msgpack.Decoder(list[Sample]).decode, files.read_bytes(path))

    def batch_steps(self, stage: str) -> list[int]:
        """The steps of a stage that have a journalled batch, in order."""
        return self._steps("batches", stage, "msgpack")

    def write_eval(self, name: str, episodes: Iterable[Episode]) -> None:
        """The episodes of one evaluation (`base`, `sft`, ...), replacing what was there."""
        path = self.folder / "evals" / f"{_checked(name)}.jsonl"
        self.log("eval", name=name)  # first, so that a file never lacks its place in the order
        self._write_all(path, episodes)

    def read_eval(self, name: str) -> list[Episode]:
        """The episodes of one evaluation. Raises StoreError if there is none of this name."""
        return _read_all(self.folder / "evals" / f"{_checked(name)}.jsonl")

    def evals(self) -> list[str]:
        """Names of the evaluations that are there, in the order in which they were begun."""
        names = sorted(p.stem for p in (self.folder / "evals").glob("[!.]*.jsonl"))
        order = [line.get("name") for line in self.journal("eval")]
        return sorted(names, key=lambda n: (order.index(n) if n in order else len(order), n))

    def keep(self, data: bytes) -> str:
        """Store bytes that were graded; the digest by which `kept` finds them. For any thread."""
        self._writable(self._journal)
        return self._artifacts.put(data)

    def kept(self, digest: str) -> bytes:
        """What was kept under this digest. Raises StoreError when it is missing or corrupt."""
        return self._artifacts.get(digest)

    def write_regrade(self, name: str, data: bytes) -> Path:
        """Write `regrades/<name>.json`; the one thing that is also written of a run that is viewed.

        Nothing reads it to go on from, so it does not need the run to itself.
        """
        path = self.folder / "regrades" / f"{_checked(name)}.json"
        with files.explained(path):
            path.parent.mkdir(exist_ok=True)
        files.write_atomic(path, data)
        return path

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Write `summary.json`, with indents for people."""
        self._writable(self._journal)
        text = msgspec.json.format(msgspec.json.encode(summary), indent=2) + b"\n"
        files.write_atomic(self.folder / "summary.json", text)

    def read_summary(self) -> dict[str, Any]:
        """What `summary.json` holds; empty if it was not written yet."""
        path = self.folder / "summary.json"
        if not path.exists():
            return {}
        decode = msgspec.json.Decoder(dict[str, Any]).decode
        return _decoded(path, decode, files.read_bytes(path))

    def close(self) -> None:
        """Close the files and give the folder back. May be called twice."""
        for part in (self._journal, self._metrics):
            if part:
                part.close()
        if self._lock:
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()

    # Inner parts

    def _writable(self, part: Journal | None) -> Journal:
        if part is None:
            raise StoreError(f"{self.folder} was opened for reading only; use Run.open to write")
        return part

    def _now(self) -> float:
        return round(self._clock(), 3) if self._clock else 0.0

    def _file(self, room: str, stage: str, step: int, ending: str) -> Path:
        return self.folder / room / f"{_checked(stage)}-{step:06d}.{ending}"

    def _steps(self, room: str, stage: str, ending: str) -> list[int]:
        pattern = re.compile(rf"{re.escape(_checked(stage))}-(\d{{6,}})\.{ending}")
        found = (pattern.fullmatch(p.name) for p in (self.folder / room).glob("*"))
        return sorted(int(match[1]) for match in found if match)

    def _write_all(self, path: Path, episodes: Iterable[Episode]) -> None:
        self._writable(self._journal)
        files.write_atomic(path, b"".join(msgspec.json.encode(e) + b"\n" for e in episodes))


_OURS = {
    *_FOLDERS,
    "regrades",
    "journal.jsonl",
    "metrics.jsonl",
    ".lock",
    "summary.json",
    "report.html",
}


def _existing(folder: Path) -> Path:
    if not (folder / "recipe.toml").exists():
        raise StoreError(
            f"{folder} holds no run (no recipe.toml); check the path, or start the run first"
        )
    return folder


def _checked(name: str) -> str:
    """A name that is safe in a path."""
    if not _NAME.fullmatch(name):
        raise StoreError(
            f"{name!r} cannot name a file; use letters, digits, '_', '-' and '.', no '.' in front"
        )
    return name


def _read_all(path: Path) -> list[Episode]:
    decoder = msgspec.json.Decoder(Episode)
    return [
        _decoded(path, decoder.decode, line) for line in files.read_bytes(path).split(b"\n") if line
    ]


def _decoded(path: Path, decode: Callable[[bytes], T], data: bytes) -> T:
    try:
        return decode(data)
    except (msgspec.DecodeError, msgspec.ValidationError, ValueError) as error:
        raise StoreError(
            f"{path} is corrupt ({error}); "
            "restore it from a copy, or delete it and run the step again"
        ) from error
