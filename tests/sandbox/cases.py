"""The abuse table: 61 attacks, a nuisance (43) and what must go on working (57).

An attack is a small bounded program that runs in a box and says whether it worked. Where only the
host can tell, it is a function that drives the box. Most of those that a naive bubblewrap lets
through are run in one, too: an attack that never works would show nothing.
"""

# ruff: noqa: ASYNC240

import asyncio
import io
import os
import resource
import socket
import subprocess
import tarfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from test_death import alive, fresh_mark

from practicum.core import File, Limits, SandboxError
from practicum.sandbox.contract import Archive, Result
from practicum.sandbox.host import Capabilities
from practicum.sandbox.local import LocalBox, LocalBoxes

SECRET = "hunter2"  # in an environment variable of this name, and in a file
VARIABLE = "PRACTICUM_SECRET"
LIMITS = Limits(memory_mb=256, processes=32, output_bytes=32 * 1024, workspace_mb=16)
QUARTER = Limits(cpus=0.25)
LOOPBACK = Limits(network=("loopback",))
SECONDS = 30.0  # more than any attack needs, on a slow machine


class Place(Protocol):
    """Where an attack runs."""

    async def run(self, argv: Sequence[str], *, seconds: float | None = None) -> Result: ...


@dataclass(frozen=True)
class Victims:
    """What lies open on the host for whoever gets there."""

    folder: Path  # where anybody may write
    secret: Path  # a file in it that anybody may read
    sentinel: subprocess.Popen[bytes]  # a process of the guest's own uid on the host
    command: list[str]  # which it runs
    port: int  # on the loopback
    abstract: str  # name of a unix socket
    path: str  # of another one
    memory: int  # key of a shared memory

    def facts(self) -> dict[str, Any]:
        """What an attack is told."""
        return {
            "folder": str(self.folder),
            "secret": str(self.secret),
            "sentinel": self.sentinel.pid,
            "command": self.command,
            "port": self.port,
            "abstract": self.abstract,
            "path": self.path,
            "memory": self.memory,
            "variable": VARIABLE,
            "hostname": socket.gethostname(),
            "uts": os.readlink("/proc/self/ns/uts"),
        }


@dataclass(frozen=True)
class Scene:
    """One attack: where it runs, and against what."""

    place: Place
    victims: Victims
    workspace: str = "/workspace"
    boxes: LocalBoxes | None = None

    @property
    def box(self) -> LocalBox:
        """The place, for attacks that are about more than running a command."""
        assert isinstance(self.place, LocalBox)
        return self.place

    async def open(self) -> LocalBox:
        """Another box."""
        assert self.boxes is not None
        return await self.boxes.open(limits=LIMITS)

    async def python(self, code: str) -> Result:
        """Run a Python program that knows the victims as V and the workspace as W."""
        known = f"{TOLD}\nV, W = {self.victims.facts()!r}, {self.workspace!r}\n"
        return await self.place.run(["python3", "-c", known + code], seconds=SECONDS)

    async def shell(self, code: str, seconds: float = SECONDS) -> Result:
        """Run a line of bash."""
        return await self.place.run(["bash", "-c", code], seconds=seconds)


TOLD = """
import ctypes, fcntl, glob, os, signal, socket, stat, struct, subprocess, sys, time
libc = ctypes.CDLL(None, use_errno=True)
signal.alarm(25)  # whoever started it may be gone

def verdict(escaped):
    print("ESCAPED" if escaped else "contained", flush=True)

def works(call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except OSError:
        return False
    return True
"""

Attack = Callable[[Scene], Awaitable[bool]]


def never(_: Capabilities) -> bool:
    return False


def always() -> bool:
    return True


@dataclass(frozen=True)
class Case:
    """An attack. `attack` prints its verdict, or is a function that is true when it worked."""

    number: int
    title: str
    attack: str | Attack
    naive: bool = False  # it works in a naive bubblewrap
    limits: Limits = LIMITS
    fatal: bool = False  # it may be killed before it says anything
    weak: Callable[[Capabilities], bool] = never  # where the record says that it is not stopped
    known: str = ""  # kind of boxes that it is known to work in: docs/sandbox.md says so
    possible: Callable[[], bool] = always  # False where this host itself stops it

    def __str__(self) -> str:
        return f"{self.number:02} {self.title}"

    async def escapes(self, scene: Scene) -> bool:
        """Whether the attack works. An attack that fails without a verdict is an error."""
        if not isinstance(self.attack, str):
            return await self.attack(scene)
        result = await scene.python(self.attack)
        words = result.stdout.split()
        if b"ESCAPED" in words:
            return True
        assert b"contained" in words or (self.fatal and not result.timed_out), result
        return False


def no_memory_group(record: Capabilities) -> bool:
    """Limits on a box as a whole need cgroups."""
    return record.memory != "cgroup"


def no_cpu_group(record: Capabilities) -> bool:
    return record.cpus != "cgroup"


def shared_uid(record: Capabilities) -> bool:
    return not record.own_uid


def setting(path: str, off: str) -> Callable[[], bool]:
    """Whether a setting of the host does not forbid it."""

    def possible() -> bool:
        file = Path("/proc/sys", path)
        return not file.exists() or file.read_text().strip() != off

    return possible


def has_route() -> bool:
    rows = Path("/proc/net/route").read_text().splitlines()[1:]
    return any(row.split()[1] == "00000000" for row in rows)


def has_vsock() -> bool:
    with suppress(OSError), socket.socket(40, socket.SOCK_STREAM):
        return True
    return False


def many_files() -> bool:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[1] > 4096


# Resources

FORK_BOMB = """
made = []
try:
    while len(made) < 300:
        pid = os.fork()
        if pid == 0:
            signal.alarm(20)
            signal.pause()
        made.append(pid)
except OSError:
    pass
verdict(len(made) > 32)
for pid in made:
    os.kill(pid, 9)
"""


async def exponential_bomb(scene: Scene) -> bool:
    mark = fresh_mark()
    begin = time.monotonic()
    result = await scene.shell(f"b() {{ b | b & b; }}; b; sleep 20; : {mark}", seconds=1.0)
    assert result.timed_out or result.exit_code != 0
    return await survives(mark) or time.monotonic() - begin > SECONDS


MEMORY_BOMB = """
hoard = []
for _ in range(40):
    hoard.append(b"x" * (16 << 20))
verdict(True)
"""

MEMORY_OF_MANY = """
def died(*_):
    verdict(False)
    os._exit(0)

signal.signal(signal.SIGCHLD, died)
ready, tell = os.pipe()
made = []
for _ in range(8):
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        hoard = b"x" * (100 << 20)
        os.write(tell, b"x")
        signal.pause()
    made.append(pid)
together = 0
while together < 8:
    together += len(os.read(ready, 8))
signal.signal(signal.SIGCHLD, signal.SIG_DFL)
verdict(True)
for pid in made:
    os.kill(pid, 9)
"""


def filling(folder: str, megabytes: int) -> str:
    """Write 120 MiB into files of this size."""
    return f"""
total = 0
try:
    for n in range({120 // megabytes}):
        with open(f"{{{folder}}}/fill{{n}}", "wb", buffering=0) as f:
            for _ in range({megabytes}):
                total += f.write(bytes(1 << 20))
except OSError:
    pass
verdict(total > 16 << 20)
for path in glob.glob(f"{{{folder}}}/fill*"):
    os.remove(path)
"""


INODES = """
made = 0
try:
    while made < 20000:
        os.mknod(f"/tmp/{made}")
        made += 1
except OSError:
    pass
verdict(made > 16384)
"""


async def endless_output(scene: Scene) -> bool:
    result = await scene.shell("yes", seconds=0.5)
    return len(result.stdout) > LIMITS.output_bytes


async def much_output_in_turns(scene: Scene) -> bool:
    code = "for _ in range(64):\n    for fd in 1, 2:\n        os.write(fd, bytes(1 << 19))"
    result = await scene.python(code)
    lengths = {len(result.stdout), len(result.stderr)}
    return result.timed_out or not result.output_cut or max(lengths) > LIMITS.output_bytes


DESCRIPTORS = """
import resource
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
made = 0
try:
    while made < 4000:
        os.open("/dev/null", os.O_RDONLY)
        made += 1
except OSError:
    pass
verdict(made > 1024)
"""

PROCESSORS = """
begin = time.monotonic()
for _ in range(16):
    if os.fork() == 0:
        os.setsid()  # a share of its own, where the kernel divides by sessions
        while time.monotonic() < begin + 1:
            pass
        os._exit(0)
for _ in range(16):
    os.wait()
used = os.times()
spent = used.children_user + used.children_system
verdict(spent > 0.5 * (time.monotonic() - begin))
"""


# Processes


async def survives(mark: str) -> bool:
    """Whether a process with this mark is there, now or a moment later."""
    if alive(mark):
        return True
    await asyncio.sleep(0.1)  # one that is just replaced by another program has no name
    return bool(alive(mark))


def outlasting(code: str) -> Attack:
    """Whether MARK still runs when the command is over."""

    async def attack(scene: Scene) -> bool:
        mark = f"30.{fresh_mark()}"
        result = await scene.shell(f"echo begun; {code}; : MARK".replace("MARK", mark), seconds=1.0)
        assert result.stdout == b"begun\n"
        return await survives(mark)

    return attack


async def daemon(scene: Scene) -> bool:
    mark = f"30.{fresh_mark()}"
    begin = time.monotonic()
    result = await scene.shell(f"(setsid setsid sleep {mark} &); echo left")
    assert result.stdout == b"left\n"
    return await survives(mark) or time.monotonic() - begin > SECONDS / 2


async def endless_input(scene: Scene) -> bool:
    return (await scene.shell("cat; read line", seconds=5.0)).timed_out


def killing(code: str) -> Attack:
    """Whether a process of the host dies of it."""

    async def attack(scene: Scene) -> bool:
        await scene.shell(code.format(pid=scene.victims.sentinel.pid))
        await asyncio.sleep(0.1)
        return scene.victims.sentinel.poll() is not None

    return attack


# What the host would show

HOST_PROCESSES = """
found = False
for path in glob.glob("/proc/[0-9]*/cmdline"):
    try:
        with open(path) as f:
            found |= f.read().split("\\0")[:-1] == V["command"]
    except OSError:
        pass
verdict(found)
"""

PID_1 = """
read = [name for name in ("environ", "maps", "mem") if works(open, f"/proc/1/{name}", "rb")]
listed = [name for name in ("root", "cwd", "fd") if works(os.listdir, f"/proc/1/{name}")]
verdict(read or listed)
"""

HOMES = """
verdict(any(works(os.listdir, home) for home in ("/root", "/home", *glob.glob("/home/*"))))
"""


async def write_in_shared_folders(scene: Scene) -> bool:
    mark = f"box-{fresh_mark()}"
    folders = ["/tmp", "/var/tmp", "/dev/shm", str(scene.victims.folder)]
    code = "".join(f"works(open, {f'{folder}/{mark}'!r}, 'w')\n" for folder in folders)
    assert (await scene.python(code)).exit_code == 0
    return any(Path(folder, mark).exists() for folder in folders)


WRITE_SYSTEM = """
folders = ["/", "/etc", "/usr", "/usr/bin", "/usr/lib", "/var", "/opt", "/opt/python", "/dev"]
folders += ["/proc", "/bin", "/sbin", "/lib", "/boot", "/root", "/home"]
names = [f"{folder}/intruder" for folder in folders]
done = [name for name in names if works(os.open, name, os.O_WRONLY | os.O_CREAT)]
done += [name for name in ("/etc/passwd", "/usr/bin/env", "/etc/hosts")
         if works(os.open, name, os.O_WRONLY)]
verdict(done)
"""

ENVIRONMENT = """
found = V["variable"] in os.environ
for path in glob.glob("/proc/[0-9]*/environ"):
    try:
        with open(path, "rb") as f:
            found |= V["variable"].encode() in f.read()
    except OSError:
        pass
verdict(found)
"""

INHERITED = """
folders = range(3, 256)
found = any(works(os.stat, V["secret"][1:], dir_fd=fd) for fd in folders)
verdict(found or any(works(os.stat, path + V["secret"]) for path in glob.glob("/proc/*/fd/*")))
"""

DEVICES = """
names = "core console fd full null ptmx pts random shm stderr stdin stdout tty urandom zero"
others = set(os.listdir("/dev")) - set(names.split())
made = works(os.mknod, f"{W}/mem", stat.S_IFCHR | 0o600, os.makedev(1, 1))
verdict(others or made)
"""

HOSTNAME = """
verdict(socket.gethostname() == V["hostname"] and os.readlink("/proc/self/ns/uts") == V["uts"])
"""

SYSCTL = """
names = "kernel/core_pattern kernel/hostname kernel/domainname vm/swappiness"
names += " vm/overcommit_memory user/max_user_namespaces net/core/somaxconn fs/file-max"

def write_back(path):
    with open(path, "rb") as f:
        value = f.read()
    with open(path, "wb", buffering=0) as f:
        f.write(value)

verdict(any(works(write_back, f"/proc/sys/{name}") for name in names.split()))
"""

CGROUPS = """
folders = ["/sys/fs/cgroup", *glob.glob("/sys/fs/cgroup/*/")]
made = [f"{folder}/intruder" for folder in folders if works(os.mkdir, f"{folder}/intruder")]
for path in made:
    os.rmdir(path)
verdict(made or any(works(open, f"{folder}/cgroup.procs", "w") for folder in folders))
"""

SHARED_MEMORY = """
libc.shmat.restype = ctypes.c_void_p
found = libc.shmget(V["memory"], 0, 0)
verdict(found >= 0 and ctypes.string_at(libc.shmat(found, None, 0o10000), 6) == b"secret")
"""

TAKE_INOTIFY = """
held = 0
while libc.inotify_init() >= 0:
    held += 1
print(held, flush=True)
time.sleep(1)
"""

NEED_INOTIFY = """
refused = 0
end = time.time() + 1.3
while time.time() < end:
    fd = libc.inotify_init()
    if fd < 0:
        refused += 1
    else:
        os.close(fd)
    time.sleep(0.05)
verdict(refused)
"""


async def take_all_inotify(scene: Scene) -> bool:
    """From another box, as long as this one holds all that it can have."""
    async with await scene.open() as other:
        elsewhere = Scene(other, scene.victims)
        taken, needed = await asyncio.gather(
            scene.python(TAKE_INOTIFY), elsewhere.python(NEED_INOTIFY)
        )
    assert int(taken.stdout) > 0
    assert needed.exit_code == 0
    return needed.stdout == b"ESCAPED\n"


# Network

LOCALHOST = """
verdict(works(socket.create_connection, ("127.0.0.1", V["port"]), 2))
"""

OUTSIDE = """
four, six = (socket.socket(kind, socket.SOCK_DGRAM) for kind in (socket.AF_INET, socket.AF_INET6))
verdict(works(four.connect, ("192.0.2.1", 9)) or works(six.connect, ("2001:db8::1", 9)))
"""

NAMES = """
verdict(any(works(socket.getaddrinfo, name, 80) for name in ("example.com", "pypi.org")))
"""

ABSTRACT = """
verdict(works(socket.socket(socket.AF_UNIX).connect, "\\0" + V["abstract"]))
"""

UNIX_PATH = """
paths = [V["path"], *glob.glob("/run/*sock*"), *glob.glob("/run/*/*sock*")]
verdict(any(works(socket.socket(socket.AF_UNIX).connect, path) for path in paths))
"""

VSOCK = """
verdict(works(socket.socket, 40, socket.SOCK_STREAM))
"""

RAW = """
packet, alg = 17, 38
kinds = [(packet, 3, 0), (packet, 2, 0), (alg, 5, 0), (2, 3, 1), (2, 3, 255), (10, 3, 58)]
verdict(any(works(socket.socket, *kind) for kind in kinds))
"""

OWN_SERVER = """
import threading
server = socket.create_server(("127.0.0.1", 0))
threading.Thread(target=lambda: server.accept()[0].sendall(b"hello"), daemon=True).start()
said = socket.create_connection(server.getsockname(), 10).recv(9)
verdict(said != b"hello")
"""


# The kernel's interface

TRACE = """
seize = 0x4206
verdict([pid for pid in (1, V["sentinel"]) if libc.ptrace(seize, pid, 0, 0) == 0])
"""

MOUNT = """
w = W.encode()
done = [
    libc.mount(b"x", w, b"tmpfs", 0, None),
    libc.mount(b"/usr", w, None, 0x1000, None),  # bind
    libc.mount(None, b"/usr", None, 0x1020, None),  # bind, remount: writable
    libc.mount(None, b"/", None, 0x1020, None),
    libc.umount2(b"/proc", 2),
    libc.umount2(b"/usr", 2),
]
verdict(0 in done)
"""

NESTED = """
user, mount = 0x10000000, 0x20000
verdict(libc.unshare(user | mount) == 0 and libc.mount(b"x", W.encode(), b"tmpfs", 0, None) == 0)
"""

CHROOT = """
libc.unshare(0x10000000)
root = os.open("/", os.O_RDONLY)
os.mkdir(f"{W}/jail")
escaped = works(os.chroot, f"{W}/jail") and works(os.fchdir, root) and works(os.chroot, "../../..")
verdict(escaped)
"""

SETUID_PROGRAM = """
paths = ["/usr/bin/su", "/usr/bin/newgrp", "/usr/bin/passwd", "/usr/bin/chsh"]
tried, gained = 0, []
for path in paths:
    if not (os.path.exists(path) and os.stat(path).st_mode & stat.S_ISUID):
        continue
    child = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL, env={})
    for _ in range(100):
        fields = dict(line.split(":", 1) for line in open(f"/proc/{child.pid}/status"))
        if fields["Name"].strip() == os.path.basename(path) or child.poll() is not None:
            break
        time.sleep(0.01)
    tried += 1
    uids = fields["Uid"].split()
    gained += [path] if len(set(uids)) > 1 or int(fields["CapPrm"], 16) else []
    child.kill()
    child.wait()
assert tried
verdict(gained)
"""

SETUID_SHELL = """
import shutil
shell = shutil.copy("/bin/sh", f"{W}/shell")
given = works(os.chown, shell, 0, 0)
os.chmod(shell, 0o4755)
verdict(given or not os.statvfs(W).f_flag & os.ST_NOSUID)
"""

CLOCK = """
clock = time.CLOCK_REALTIME
verdict(works(time.clock_settime, clock, time.clock_gettime(clock)))
"""

IO_URING = """
verdict(libc.syscall(425, 8, bytes(120)) >= 0)
"""

RARE_CALLS = """
numbers = {"x86_64": (321, 298, 323, 248, 250), "aarch64": (280, 241, 282, 217, 219)}
bpf, perf, userfault, add_key, keyctl = numbers[os.uname().machine]
attributes = struct.pack("IIQQQQQ", 1, 112, 0, 0, 0, 0, 0b1100000) + bytes(64)
calls = [
    (bpf, 0, struct.pack("IIII", 2, 4, 4, 1) + bytes(56), 72),
    (perf, attributes, 0, -1, -1, 0),
    (userfault, 1),
    (add_key, b"user", b"name", b"x", 1, -2),
    (keyctl, 0, -3, 0),
]
verdict([call for call in calls if libc.syscall(*call) >= 0])
"""

BY_HANDLE = """
handles = [struct.pack("IiII", 8, 1, 2, 0), struct.pack("IiQ", 8, 0xFE, 2)]
folders = [os.open(path, os.O_RDONLY) for path in ("/usr", "/", W)]
opened = [libc.open_by_handle_at(fd, handle, 0) for fd in folders for handle in handles]
verdict(max(opened) >= 0)
"""

KERNEL_SECRETS = """
addresses = set()
try:
    with open("/proc/kallsyms") as f:
        addresses = {int(line.split()[0], 16) for line in f}
except OSError:
    pass
text = ctypes.create_string_buffer(4096)
read_all = 3
files = ("/proc/kcore", "/proc/kmsg", "/dev/kmsg", "/dev/mem")
verdict(
    any(addresses)
    or libc.klogctl(read_all, text, 4096) >= 0
    or [path for path in files if works(os.open, path, os.O_RDONLY)]
)
"""

CAPABILITIES = """
with open("/proc/self/status") as f:
    fields = dict(line.split(":", 1) for line in f)
held = [name for name in fields if name.startswith("Cap") and int(fields[name], 16)]
verdict(held or int(fields["NoNewPrivs"]) != 1)
"""

KEYSTROKES = """
def inject(fd):
    fcntl.ioctl(fd, 0x5412, b"x")  # TIOCSTI

def inject_controlling():
    inject(os.open("/dev/tty", os.O_RDWR))

def inject_own():
    _, terminal = os.openpty()
    os.setsid()
    fcntl.ioctl(terminal, 0x540E, 0)  # TIOCSCTTY
    inject(terminal)

done = works(inject_controlling)
child = os.fork()
if child == 0:
    os._exit(works(inject_own))
verdict(os.waitpid(child, 0)[1] or done)
"""


# Files that trap the host


async def links_out(scene: Scene) -> bool:
    box, victims = scene.box, scene.victims
    await scene.shell(
        f"ln -s {victims.secret} out; ln -s {victims.folder} dir; ln -s / root; ln -s /proc/1 p;"
        "ln out hard; mkdir real; ln -s ../dir real/again"
    )
    asked = ["out", "dir", "dir/secret", "root/etc", f"root{victims.secret}", "p/environ", "hard"]
    found = await box.read([*asked, "real/again/secret", "."])
    leaked = any(SECRET.encode() in artifact.data for artifact in found.values())
    for path in ("dir/planted", "real/again/planted", "p/planted", "out"):
        with suppress(SandboxError):
            await box.write([File(path, b"planted")])
    planted = Path(victims.folder, "planted").exists()
    return leaked or planted or victims.secret.read_text() != SECRET


HARD_LINK = """
targets = ["/usr/bin/env", "/etc/passwd", "/etc/hosts", V["secret"], "/proc/self/exe"]
verdict([path for path in targets if works(os.link, path, f"{W}/link")])
"""


async def odd_names(scene: Scene) -> bool:
    names = [b"-rf", b"new\nline", b"\xff\xfe", b"quote'\"", b"back\\slash", b" ", b"x" * 255]
    names += [b"--checkpoint-action=exec=sh x", b"*", b"\x1b[2J", "späce".encode()]
    result = await scene.python(f"for name in {names!r}:\n    open(name, 'w').write('odd')")
    assert result.exit_code == 0, result
    found = await scene.box.read(["."])
    for name in map(os.fsdecode, names):
        alone = await scene.box.read([name])
        if not found[name].data == alone[name].data == b"odd":
            return True
    return len(found) != len(names) + 1


async def endless_files(scene: Scene) -> bool:
    code = """
os.mkfifo("fifo")
socket.socket(socket.AF_UNIX).bind("socket")
os.symlink("/dev/zero", "zero")
with open("sparse", "wb") as f:
    for size in (1 << 40, 16 << 20):
        if works(f.truncate, size):
            break
    f.seek(5 << 20)
    f.write(b"x")
"""
    assert (await scene.python(code)).exit_code == 0
    begin = time.monotonic()
    found = await scene.box.read(["."], max_bytes=6 << 20)
    kinds = {name: artifact.kind for name, artifact in found.items()}
    assert kinds == {".": "dir", "sparse": "file", "zero": "symlink"}
    sparse = found["sparse"]
    whole = sparse.truncated and sparse.data == bytes(5 << 20) + b"x" + bytes((1 << 20) - 1)
    return time.monotonic() - begin > SECONDS or not whole


async def closes(box: LocalBox) -> bool:
    """Whether a box goes, in time and with all of its processes."""
    pid, begin = box.pid, time.monotonic()
    await box.close()
    with suppress(OSError):
        words = Path(f"/proc/{pid}/stat").read_text()
        return words.rpartition(")")[2].split()[0] in "ZX"
    return time.monotonic() - begin < SECONDS


async def deep_folders(scene: Scene) -> bool:
    box = await scene.open()
    code = "for _ in range(3000):\n    os.mkdir('d')\n    os.chdir('d')"
    assert (await Scene(box, scene.victims).python(code)).exit_code == 0
    await box.run(["sh", "-c", "echo x > a"])
    found = await box.read(["d", "a"])
    return found["a"].data != b"x\n" or not await closes(box)


async def closed_folders(scene: Scene) -> bool:
    box = await scene.open()
    code = "mkdir -p a/b/c; echo x > a/b/c/f; chmod -R 000 a; chmod 000 . /tmp"
    await box.run(["sh", "-c", code])
    found = await box.read(["a"])
    return found["a/b/c/f"].data != b"x\n" or not await closes(box)


async def remove_everything(scene: Scene) -> bool:
    await scene.shell("rm -rf --no-preserve-root / 2>&1; rm -rf /workspace /tmp")
    result = await scene.box.run(["sh", "-c", "echo y > a; cat a"])
    return result.stdout != b"y\n" or (await scene.box.read(["a"]))["a"].data != b"y\n"


async def end_pid_1(scene: Scene) -> bool:
    code = "for number in (9, 15, 19, 11, 2):\n    works(os.kill, 1, number)\nprint('lives')"
    lives = (await scene.python(code)).stdout == b"lives\n"
    return not lives or (await scene.box.run(["sh", "-c", "exit 5"])).exit_code != 5


async def slipping_archive(scene: Scene) -> bool:
    """One that the guest unpacks, and one in the place of a snapshot."""
    mark = f"slip-{fresh_mark()}"
    folders = ["/tmp", "/dev/shm", "/etc", str(scene.victims.folder)]
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:

        def add(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> None:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, target
            tar.addfile(info)

        for number, folder in enumerate(folders):
            add(f"{folder}/{mark}")
            add(f"{'../' * 8}{folder}/{mark}")
            add(f"link{number}", tarfile.SYMTYPE, folder)
            add(f"link{number}/{mark}")
        add("hard", tarfile.LNKTYPE, str(scene.victims.secret))
        add("memory", tarfile.CHRTYPE)
    await scene.box.write([File("evil.tar", buffer.getvalue())])
    await scene.shell("tar -xPf evil.tar; tar -xf evil.tar; tar -C / -xPf evil.tar")
    assert scene.boxes is not None
    with suppress(SandboxError):
        await (await scene.boxes.restore(Archive(buffer.getvalue(), LIMITS))).close()
    leaked = any(SECRET.encode() in a.data for a in (await scene.box.read(["."])).values())
    return leaked or any(Path(folder, mark).exists() for folder in folders)


CASES = [
    Case(1, "fork bomb", FORK_BOMB, naive=True),
    Case(2, "fork bomb that doubles, at its deadline", exponential_bomb),
    Case(3, "memory bomb", MEMORY_BOMB, naive=True, fatal=True),
    Case(
        4,
        "memory bomb of many processes",
        MEMORY_OF_MANY,
        naive=True,
        fatal=True,
        weak=no_memory_group,
    ),
    Case(5, "filling /tmp", filling("'/tmp'", 4)),
    Case(6, "filling the workspace with one file", filling("W", 120), naive=True),
    Case(7, "filling the workspace with many files", filling("W", 4), naive=True),
    Case(8, "filling /dev/shm", filling("'/dev/shm'", 4), naive=True),
    Case(9, "inode bomb", INODES),
    Case(10, "endless output", endless_output, naive=True),
    Case(11, "much output on both streams in turns", much_output_in_turns),
    Case(12, "all descriptors", DESCRIPTORS, naive=True, possible=many_files),
    Case(13, "all processors", PROCESSORS, naive=True, limits=QUARTER, weak=no_cpu_group),
    Case(20, "daemon that holds the output", daemon, naive=True),
    Case(
        21,
        "deaf to signals at its deadline",
        outlasting("trap '' TERM INT HUP; for n in {1..30}; do sleep 1; done"),
        naive=True,
    ),
    Case(22, "stopped at its deadline", outlasting("kill -STOP $$; sleep MARK"), naive=True),
    Case(23, "reading for ever", endless_input),
    Case(24, "killing everybody", killing("kill -9 -1"), naive=True),
    Case(25, "killing a process of the host", killing("kill -9 {pid}"), naive=True),
    Case(30, "processes of the host", HOST_PROCESSES, naive=True),
    Case(31, "reading pid 1", PID_1, known="BubblewrapBoxes"),
    Case(32, "reading /etc/shadow", "verdict(works(open, '/etc/shadow'))"),
    Case(33, "listing homes", HOMES, naive=True),
    Case(34, "writing where the host may", write_in_shared_folders),
    Case(35, "writing the system", WRITE_SYSTEM),
    Case(36, "a secret in the environment", ENVIRONMENT, naive=True),
    Case(37, "an inherited descriptor of a folder", INHERITED, naive=True),
    Case(38, "devices", DEVICES),
    Case(39, "the host's name", HOSTNAME, naive=True),
    Case(40, "writing settings of the kernel", SYSCTL),
    Case(41, "writing cgroups", CGROUPS),
    Case(42, "shared memory of the host", SHARED_MEMORY, naive=True),
    Case(43, "taking all inotify instances", take_all_inotify, weak=shared_uid),
    Case(50, "a server of the host's loopback", LOCALHOST, naive=True, limits=LOOPBACK),
    Case(51, "a way out", OUTSIDE, naive=True, limits=LOOPBACK, possible=has_route),
    Case(52, "asking for names", NAMES, limits=LOOPBACK),
    Case(53, "an abstract socket of the host", ABSTRACT, naive=True),
    Case(54, "a socket of the host by its path", UNIX_PATH, naive=True),
    Case(55, "vsock", VSOCK, naive=True, possible=has_vsock),
    Case(56, "raw, packet and crypto sockets", RAW),
    Case(57, "a server of its own, which must work", OWN_SERVER, limits=LOOPBACK),
    Case(60, "tracing pid 1 or the host", TRACE, known="BubblewrapBoxes"),
    Case(61, "mounting", MOUNT),
    Case(
        62,
        "a user namespace to mount in",
        NESTED,
        naive=True,
        possible=setting("kernel/apparmor_restrict_unprivileged_userns", "1"),
    ),
    Case(63, "breaking out of chroot", CHROOT),
    Case(64, "a setuid program", SETUID_PROGRAM),
    Case(65, "leaving a setuid shell", SETUID_SHELL),
    Case(66, "setting the clock", CLOCK),
    Case(
        67,
        "io_uring",
        IO_URING,
        naive=True,
        possible=setting("kernel/io_uring_disabled", "2"),
    ),
    Case(68, "bpf, perf, userfaultfd and keys", RARE_CALLS, naive=True),
    Case(69, "opening by handle", BY_HANDLE),
    Case(70, "secrets of the kernel", KERNEL_SECRETS),
    Case(71, "capabilities", CAPABILITIES),
    Case(
        72,
        "typing into the terminal",
        KEYSTROKES,
        naive=True,
        possible=setting("dev/tty/legacy_tiocsti", "0"),
    ),
    Case(80, "links out of the workspace", links_out),
    Case(81, "a hard link to a file of the host", HARD_LINK),
    Case(82, "odd names of files", odd_names),
    Case(83, "endless files", endless_files),
    Case(84, "deep folders", deep_folders),
    Case(85, "closed folders", closed_folders),
    Case(86, "removing everything", remove_everything),
    Case(87, "ending pid 1", end_pid_1),
    Case(88, "an archive that slips out", slipping_archive),
]
