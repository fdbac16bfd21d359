"""Starts one command, waits for it, and writes down how it ended. Run as `python -S -E shim.py ORDER`.

Standard library only and no import of recmesh: it starts in a few milliseconds and stays small. It outlives
whoever started it (a session of its own, adopted by init), which is what makes exit reasons true after the
starter's death. ORDER is a JSON object:

    name, command, cwd, log_path, start_path, exit_path, cgroups (folders the command joins),
    memory_bytes, limit_path (not empty: no control group holds the memory, so this process watches it; the file,
    once there, says another limit), oom_score_adj, status_fd (where the outcome of the start goes, as one JSON line),
    start (what goes into the start record besides what is found here)

The command gets the shim's environment, /dev/null as input, the log as output, and a process group of its
own; what is left of the group when it ends is killed. SIGTERM and SIGINT are forwarded.

A fork server (`forkserver.py`) calls `main` in a fork of itself: the command is then no other program, but its own
child, in which `main` returns True.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

LOOKS_PER_S = 10
TYPE_CHECKING = False  # typing's own costs milliseconds, and every role of every job pays them
if TYPE_CHECKING:
    from typing import Any


def main(order: dict[str, Any], *, forked: bool = False) -> bool:
    """Runs the order; the first process returns at once, so that the starter has no child to reap. forked: nothing is
    executed; True in the process that is to be the command, False in the shim, after its end."""
    if os.fork():
        os._exit(0)
    os.setsid()
    os.umask(0o077)
    forwarded = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, forwarded)  # until there is somebody to forward to
    counters = _oom_kills(order["cgroups"])
    try:
        pid = _start(order, forked)
    except OSError as error:
        _report(order, {"error": str(error)})
        os._exit(1)
    if pid == 0:
        return True
    for number in forwarded:
        signal.signal(number, lambda number, _frame: _kill(pid, number))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    started_at = time.time()
    ticks = _start_ticks(pid)
    start = order["start"] | {
        "name": order["name"], "pid": pid, "start_ticks": ticks, "boot_id": _boot_id(),
        "shim_pid": os.getpid(), "shim_start_ticks": _start_ticks(os.getpid()), "started_at": started_at,
        "command": order["command"], "log_path": order["log_path"], "cgroups": order["cgroups"],
    }
    try:
        _write(order["start_path"], start)
    except OSError as error:  # nobody could ever find it again
        _kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        _report(order, {"error": str(error)})
        os._exit(1)
    _report(order, start)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, forwarded)
    watched = bool(order["limit_path"]) and _watch_memory(pid, order)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # its zombie keeps the pid while the rest is swept
    ended_at = time.time()
    _sweep(pid, order["cgroups"])
    _, status, used = os.wait4(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    oom = code == -signal.SIGKILL and (watched or _oom_kills(order["cgroups"]) > counters)
    record = {
        "name": order["name"], "pid": pid, "start_ticks": ticks, "started_at": started_at,
        "ended_at": ended_at, "exit_code": code if code >= 0 else None, "signal": -code if code < 0 else None,
        "oom": oom, "reason": _reason(code, oom, _limit(order)),
        "peak_memory_bytes": used.ru_maxrss * 1024, "cpu_s": round(used.ru_utime + used.ru_stime, 3),
    }
    for attempt in range(60):  # a full disk may be mended within a minute
        try:
            _write(order["exit_path"], record)
            break
        except OSError:
            if not os.path.isdir(os.path.dirname(order["exit_path"])):
                break
            time.sleep(min(attempt * 0.1, 1.0))
    _remove(order["cgroups"])
    return False


def _start(order: dict[str, Any], forked: bool) -> int:
    """Forks and executes the command; OSError when it cannot be executed. 0: in the child, where nothing is."""
    log = os.open(order["log_path"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    told, tell = os.pipe()  # both close on exec: nothing told means the command runs
    pid = os.fork()
    if pid == 0:
        try:
            os.setpgid(0, 0)
            for folder in order["cgroups"]:
                with open(os.path.join(folder, "cgroup.procs"), "w") as file:
                    file.write(str(os.getpid()))
            if order["oom_score_adj"]:
                with open("/proc/self/oom_score_adj", "w") as file:
                    file.write(str(order["oom_score_adj"]))
            os.chdir(order["cwd"])
            for name in ("PIPE", "XFSZ", "HUP", "INT", "QUIT", "TERM"):  # else what is ignored here stays so
                signal.signal(signal.Signals[f"SIG{name}"], signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, set())
            os.dup2(null, 0)
            os.dup2(log, 1)
            os.dup2(log, 2)
            if forked:
                for descriptor in (null, log, told, tell, order["status_fd"]):
                    os.close(descriptor)
                return 0
            os.set_inheritable(order["status_fd"], False)
            os.execvp(order["command"][0], order["command"])
        except OSError as error:
            what = error.filename or order["command"][0]
            os.write(tell, f"{error.errno} {error.strerror}: {what}".encode())
            os._exit(127)
        except BaseException:  # nothing else may go on as the command
            os._exit(127)
    os.close(tell)
    failure = os.read(told, 4096).decode(errors="replace")
    os.close(told)
    if failure:
        os.waitpid(pid, 0)
        number, _, text = failure.partition(" ")
        raise OSError(int(number), text)
    for descriptor, target in ((null, 0), (log, 1), (log, 2)):  # nothing of the starter's is held open
        os.dup2(descriptor, target)
    os.close(null)
    os.close(log)
    return pid


def _sweep(pid: int, cgroups: list[str]) -> None:
    """Kills what the command left behind in its process group and its control groups."""
    _killpg(pid)
    for folder in cgroups:
        try:
            with open(os.path.join(folder, "cgroup.procs")) as file:
                for line in file:
                    _kill(int(line), signal.SIGKILL)
        except OSError:
            continue


def _reason(code: int, oom: bool, memory_bytes: int | None) -> str:
    if oom:
        return f"OOMKilled: out of memory, limit {(memory_bytes or 0) / 2**20:.0f} MiB"
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return "done" if code == 0 else f"exit code {code}"


def _watch_memory(pid: int, order: dict[str, Any]) -> bool:
    """Returns when the command has ended: True when it was killed here, for using more memory than its limit.

    Anonymous and shared memory of its process group count, as in a control group; files that it maps do not. Between
    two looks it may use more: a process that allocates GiB in a tenth of a second is stopped late, or by the machine.
    What several processes share is counted once, which takes a slow look: a group as a whole has one in a second.
    """
    killed, looks, group = False, 0, [pid]
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
        is_slow = looks % LOOKS_PER_S == 0
        if is_slow:
            group = _members(pid)
        looks += 1
        limit = _limit(order) or 0
        used = [_private_bytes(member) for member in group]
        is_over = max(used) > limit or (is_slow and sum(used) > limit and _shared_once_bytes(group) > limit)
        if not killed and is_over:
            killed = True
            _killpg(pid)
            _kill(pid, signal.SIGKILL)
        time.sleep(1 / LOOKS_PER_S)
    return killed


def _members(group: int) -> list[int]:
    """The command, and what else is in its process group."""
    found = [group]
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != group:
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    stat = file.read()
                if int(stat[stat.rindex(b")") + 2 :].split()[2]) == group:
                    found.append(int(name))
            except (OSError, ValueError):
                continue  # it has just ended
    return found


def _shared_once_bytes(pids: list[int]) -> int:
    """Anonymous and shared memory of all, each page by the part that it has of it.

    One that ends between two reads leaves its part of what is shared to the next that are read, which then counts
    again: such a look is made anew, thrice at most, and the least counts.
    """
    least, living = sys.maxsize, pids
    for _ in range(3):
        parts = {pid: _field_bytes(f"/proc/{pid}/smaps_rollup", ("Pss_Anon", "Pss_Shmem")) for pid in living}
        least, before = min(least, sum(parts.values())), living
        living = [pid for pid in before if _private_bytes(pid)]
        if living == before:
            break
    return least


def _limit(order: dict[str, Any]) -> int | None:
    try:
        with open(order["limit_path"]) as file:
            return int(file.read())
    except (OSError, ValueError):
        limit: int | None = order["memory_bytes"]
        return limit


def _private_bytes(pid: int) -> int:
    return _field_bytes(f"/proc/{pid}/status", ("RssAnon", "RssShmem"))


def _field_bytes(path: str, names: tuple[str, ...]) -> int:
    """The sum of these fields, given in KiB; 0 when the process has ended."""
    try:
        with open(path) as file:
            fields = dict(line.split(":", 1) for line in file if ":" in line)
        return sum(int(fields[name].split()[0]) for name in names if name in fields) * 1024
    except (OSError, ValueError):
        return 0


def _oom_kills(cgroups: list[str]) -> int:
    """How often the kernel killed a process in these control groups for memory."""
    total = 0
    for folder in cgroups:
        for name in ("memory.events", "memory.oom_control"):  # v2, v1
            try:
                with open(os.path.join(folder, name)) as file:
                    total += sum(int(line.split()[1]) for line in file if line.split()[0] == "oom_kill")
            except OSError:
                continue
    return total


def _remove(cgroups: list[str]) -> None:
    for folder in cgroups:
        for _ in range(50):  # killed members leave within milliseconds
            try:
                os.rmdir(folder)
                break
            except FileNotFoundError:
                break
            except OSError:
                time.sleep(0.02)


def _start_ticks(pid: int) -> int:
    with open(f"/proc/{pid}/stat", "rb") as file:
        stat = file.read()
    return int(stat[stat.rindex(b")") + 2 :].split()[19])


def _boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


def _write(path: str, value: dict[str, Any]) -> None:
    part = f"{path}.{os.getpid()}.part"
    with open(part, "w") as file:
        json.dump(value, file)
    os.replace(part, path)


def _report(order: dict[str, Any], value: dict[str, Any]) -> None:
    try:
        os.write(order["status_fd"], json.dumps(value).encode() + b"\n")
        os.close(order["status_fd"])
    except OSError:
        pass  # the starter died; the records tell whoever comes after it


def _kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def _killpg(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
