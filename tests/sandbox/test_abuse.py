"""Small real attacks from inside a box. Each is bounded, so that a failing wall harms nobody."""

import os
import platform
from collections.abc import AsyncIterator

import pytest

from practicum.core import File, Limits, SandboxError
from practicum.sandbox import Sandbox
from practicum.sandbox.local import LocalBoxes
from practicum.sandbox.native import NativeBox

MIB = 1 << 20
LIMITS = Limits(memory_mb=256, processes=32, output_bytes=32 * 1024, workspace_mb=16)
PEAKS = ["memory.max_usage_in_bytes", "memory.peak"]  # cgroup v1, v2
WRITABLE = ["/workspace", "/tmp", "/dev/shm"]


@pytest.fixture
async def box(boxes: LocalBoxes) -> AsyncIterator[Sandbox]:
    async with await boxes.open(limits=LIMITS) as opened:
        yield opened


async def python(box: Sandbox, code: str, seconds: float = 30.0) -> str:
    """Output of a Python attack; its own errors are shown when the test fails."""
    result = await box.run(["python3", "-c", code], seconds=seconds)
    return (result.stdout + result.stderr).decode()


async def shell(box: Sandbox, code: str, seconds: float = 30.0) -> str:
    result = await box.run(["bash", "-c", f"exec 2>&1; {code}"], seconds=seconds)
    return result.stdout.decode()


# Resources


async def test_threads_meet_the_process_limit(box: Sandbox) -> None:
    code = """
import threading, time
made = 0
try:
    while made < 500:
        threading.Thread(target=time.sleep, args=(20,), daemon=True).start()
        made += 1
except RuntimeError:
    print("refused", made, flush=True)
"""
    output = await python(box, code)
    assert 0 < int(output.split()[1]) < LIMITS.processes


async def test_memory_bomb_of_many_processes_is_stopped(boxes: LocalBoxes, box: Sandbox) -> None:
    if boxes.capabilities.memory != "cgroup":
        with pytest.raises(SandboxError, match="does not enforce memory"):
            boxes.capabilities.refuse_without(["memory"])
        return
    code = """
import os, time
for _ in range(8):
    if os.fork() == 0:
        hoard = b"x" * (150 << 20)
        time.sleep(3)
        os._exit(0)
killed = 0
for _ in range(8):
    killed += os.WIFSIGNALED(os.wait()[1])
print(killed)
"""
    result = await box.run(["python3", "-c", code], seconds=60)
    assert result.signal == 9 or int(result.stdout) >= 6
    group = next(path for path in box.group.folders if (path / "memory.stat").exists())  # type: ignore
    peak = next(p for n in PEAKS if (p := group / n).exists())
    assert int(peak.read_text()) <= (LIMITS.memory_mb + LIMITS.workspace_mb) * MIB


@pytest.mark.parametrize("folder", WRITABLE)
async def test_filling_a_folder_ends_at_the_size_of_the_workspace(
    box: Sandbox, folder: str
) -> None:
    code = f"""
total = 0
for n in range(100):
    try:
        with open(f"{folder}/{{n}}", "wb", buffering=0) as f:
            for _ in range(4):
                total += f.write(bytes(1 << 20))
    except OSError as error:
        print(total, error.errno)
        break
else:
    print(total, 0)
"""
    total, error = map(int, (await python(box, code)).split())
    assert error == 28  # ENOSPC
    assert total <= LIMITS.workspace_mb * MIB
    left = await shell(box, "rm -f /workspace/* /tmp/* /dev/shm/*; echo x > a && cat a")
    assert left == "x\n"


@pytest.mark.parametrize("folder", WRITABLE)
async def test_inode_bomb_is_stopped(box: Sandbox, folder: str) -> None:
    code = f"""
import os
made = 0
try:
    while made < 60000:
        os.mknod(f"{folder}/{{made}}")
        made += 1
except OSError as error:
    print("refused", made)
"""
    output = await python(box, code)
    assert output.startswith("refused")
    assert int(output.split()[1]) <= 16384


async def test_endless_output_is_cut_and_dies(box: Sandbox) -> None:
    result = await box.run(["bash", "-c", "yes >&2 & yes"], seconds=1.0)
    assert result.timed_out
    assert result.output_cut
    assert len(result.stdout) == len(result.stderr) == LIMITS.output_bytes


async def test_no_core_is_dumped(box: Sandbox) -> None:
    assert "core" not in await shell(box, "sleep 9 & kill -SEGV $!; wait; ls -A")


# Processes, and what the host would show


async def test_only_own_processes_are_seen(box: Sandbox) -> None:
    pids = (await shell(box, "ls /proc | grep -E '^[0-9]+$'")).split()
    assert len(pids) <= 6
    assert max(map(int, pids)) < 30


async def test_inherited_descriptors_are_closed(boxes: LocalBoxes) -> None:
    folder = os.open("/", os.O_RDONLY)
    os.set_inheritable(folder, True)
    try:
        async with await boxes.open() as box:
            code = "import os; print(sorted(int(n) for n in os.listdir('/proc/self/fd')))"
            # 3 is the listing itself
            assert await python(box, code) == "[0, 1, 2, 3]\n"
            roots = await shell(box, "ls -d /proc/*/fd/*/etc/shadow /proc/*/root/root 2>/dev/null")
            assert roots == ""
    finally:
        os.close(folder)


@pytest.mark.parametrize(
    "path", ["/etc/shadow", "/root", "/home", "/sys", "/run", "/boot", "/mnt", "/etc/hostname"]
)
async def test_the_host_is_not_there(box: Sandbox, path: str) -> None:
    assert "there" not in await shell(box, f"[ -e {path} ] && echo there")


async def test_names_and_namespaces_are_not_the_hosts(box: Sandbox) -> None:
    assert await shell(box, "cat /proc/sys/kernel/hostname") == "box\n"
    for name in ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup"):
        inside = (await shell(box, f"readlink /proc/self/ns/{name}")).strip()
        assert inside
        assert inside != os.readlink(f"/proc/self/ns/{name}")


async def test_no_privilege_is_held_or_gained(box: Sandbox) -> None:
    status = await shell(box, "cat /proc/self/status")
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(fields[name], 16) == 0
    assert fields["NoNewPrivs"] == "1"
    assert fields["Uid"].split() == ["1000"] * 4
    mounts = await shell(box, "cat /proc/self/mounts")
    for line in mounts.splitlines():
        assert "nosuid" in line.split()[3].split(","), line


@pytest.mark.parametrize(
    "path", ["kernel/core_pattern", "kernel/hostname", "vm/drop_caches", "user/max_user_namespaces"]
)
async def test_sysctls_cannot_be_written(box: Sandbox, path: str) -> None:
    code = f"v=$(cat /proc/sys/{path} 2>/dev/null || echo 1); echo $v > /proc/sys/{path} && echo OK"
    assert "OK" not in await shell(box, code)


# Network


# The kernel's interface

X86_64 = {
    "io_uring_setup": (425, 38),
    "io_uring_enter": (426, 38),
    "clone3": (435, 38),
    "userfaultfd": (323, 1),
    "add_key": (248, 1),
    "request_key": (249, 1),
    "keyctl": (250, 1),
    "bpf": (321, 1),
    "perf_event_open": (298, 1),
    "mount": (165, 1),
    "umount2": (166, 1),
    "pivot_root": (155, 1),
    "chroot": (161, 1),
    "unshare": (272, 1),
    "setns": (308, 1),
    "open_tree": (428, 1),
    "move_mount": (429, 1),
    "fsopen": (430, 1),
    "mount_setattr": (442, 1),
    "open_by_handle_at": (304, 1),
    "finit_module": (313, 1),
    "kexec_load": (246, 1),
    "reboot": (169, 1),
    "clock_settime": (227, 1),
    "syslog": (103, 1),
    "getpid in x32": (0x40000000 + 39, 38),
}


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers are of x86_64")
async def test_dangerous_system_calls_are_refused(box: Sandbox) -> None:
    code = f"""
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
for name, (number, _) in {X86_64!r}.items():
    ctypes.set_errno(0)
    value = libc.syscall(number, 0, 0, 0, 0, 0, 0)
    print(name, value, ctypes.get_errno(), sep="|")
"""
    for line in (await python(box, code)).splitlines():
        name, value, error = line.split("|")
        assert (int(value), int(error)) == (-1, X86_64[name][1]), name


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers are of x86_64")
async def test_new_namespaces_by_clone_are_refused(box: Sandbox) -> None:
    code = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
for flag in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
    value = libc.syscall(56, flag | 17, 0, 0, 0, 0)
    if value == 0:
        libc._exit(0)
    print(value, ctypes.get_errno())
"""
    assert await python(box, code) == "-1 1\n" * 7


async def test_keystrokes_cannot_be_injected(box: Sandbox) -> None:
    code = """
import errno, fcntl, os, pty
leader, follower = pty.openpty()
for request in (0x5412, 0x541C):
    try:
        fcntl.ioctl(follower, request, b"x")
        print("INJECTED")
    except OSError as error:
        print(errno.errorcode[error.errno])
"""
    assert await python(box, code) == "EPERM\nEPERM\n"


# Files that trap the host


async def test_hard_links_to_host_files_fail_and_own_ones_are_read(box: Sandbox) -> None:
    output = await shell(box, "ln /usr/bin/env e && echo LINKED; echo x > a; ln a b")
    assert "LINKED" not in output
    found = await box.read(["a", "b"])
    assert found["a"].data == found["b"].data == b"x\n"


async def test_a_closed_workspace_is_a_failure_of_the_guest(box: Sandbox) -> None:
    await shell(box, "echo x > a; chmod 000 /workspace /tmp /dev/shm")
    result = await box.run(["true"])
    assert result.exit_code == 126
    assert (await box.read(["a"]))["a"].data == b"x\n"


async def test_a_full_workspace_can_still_be_read(box: Sandbox) -> None:
    await shell(box, "echo x > a; cat /dev/zero > fill; for n in $(seq 20000); do > f$n; done")
    found = await box.read(["a", "fill"])
    assert found["a"].data == b"x\n"
    assert found["fill"].truncated


async def test_write_cannot_be_led_out(box: Sandbox) -> None:
    await shell(box, "ln -s /usr u; ln -s /proc/1 p")
    for path in ("u/x", "p/x"):
        with pytest.raises(SandboxError):
            await box.write([File(path, b"x")])


async def test_the_guest_is_what_dies_first_when_memory_runs_out(box: Sandbox) -> None:
    assert await shell(box, "cat /proc/self/oom_score_adj") == "900\n"


async def test_running_out_of_memory_is_told_apart(boxes: LocalBoxes, box: Sandbox) -> None:
    if boxes.capabilities.memory != "cgroup":
        with pytest.raises(SandboxError, match="does not enforce memory"):
            boxes.capabilities.refuse_without(["memory"])
        return
    hoard = "x = []\nwhile True: x.append(bytearray(1 << 24))"
    result = await box.run(["python3", "-c", hoard], seconds=60)
    assert (result.out_of_memory, result.exit_code, result.signal) == (True, None, 9)
    assert not (await box.run(["sh", "-c", "kill -9 $$"])).out_of_memory


async def test_pid_1_can_be_neither_read_nor_traced(box: Sandbox) -> None:
    """Else a guest could forge the exit status of its command."""
    if not isinstance(box, NativeBox):
        pytest.skip("bubblewrap's pid 1 can be traced, as docs/sandbox.md says")
    code = """
import ctypes, os
for name in ("environ", "maps", "mem", "fd", "root", "cwd", "exe", "task/1/stack"):
    try:
        path = f"/proc/1/{name}"
        os.listdir(path) if name in ("fd", "root", "cwd") else open(path, "rb").read(1)
        print("read", name)
    except OSError:
        pass
libc = ctypes.CDLL(None, use_errno=True)
for request in (16, 0x4206):  # PTRACE_ATTACH, PTRACE_SEIZE
    print(request, libc.ptrace(request, 1, 0, 0), ctypes.get_errno())
try:
    os.kill(1, 9)
    os.kill(1, 19)
except OSError as error:
    print(error)
print("done")
"""
    assert await python(box, code) == "16 -1 1\n16902 -1 1\ndone\n"
    assert (await box.run(["sh", "-c", "exit 5"])).exit_code == 5


async def test_system_v_ipc_does_not_outlive_its_command(box: Sandbox) -> None:
    """Else it would be a way from one command to the next that no snapshot shows, and a hoard."""
    make = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
for key in range(1, 6):
    found = libc.shmget(key, 8 << 20, 0o1666), libc.semget(key, 2, 0o1666), libc.msgget(key, 0o1666)
    assert min(found) >= 0, (found, ctypes.get_errno())
    ctypes.memset(libc.shmat(found[0], 0, 0), 1, 8 << 20)
"""
    look = "wc -l < /proc/sysvipc/shm; wc -l < /proc/sysvipc/sem; wc -l < /proc/sysvipc/msg"
    for _ in range(6):
        result = await box.run(["python3", "-c", make])
        assert result.exit_code == 0, result
        assert await shell(box, look) == "1\n1\n1\n"


async def test_message_queues_that_nobody_could_list_are_not_to_be_had(box: Sandbox) -> None:
    code = """
import ctypes, ctypes.util
libc = ctypes.CDLL(ctypes.util.find_library("rt") or None, use_errno=True)
print(libc.mq_open(b"/q", 0o102, 0o600, None), ctypes.get_errno())
"""
    assert await python(box, code) == "-1 38\n"
