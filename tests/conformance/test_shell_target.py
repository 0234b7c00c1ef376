"""Programs, real ones: what they get, what of their output is kept, and how they are ended."""

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import msgspec
import psutil
import pytest

from ondot.model.errors import Misconfigured
from ondot.model.execution import Outcome
from ondot.model.outcome import Cancelled, Failed, Succeeded
from ondot.model.target import ShellTarget
from ondot.ports.target import Cancel
from ondot.settings import load_settings
from ondot.targets.output import MAX_CHARACTERS, MAX_LINE_CHARACTERS, MAX_LINES
from ondot.targets.processes.confine import Account, Confinement, Limits, read_confinement
from ondot.targets.shell import ShellCaller
from tests.conformance.calls import Recorder, a_call, failure_of, gone, result_of
from tests.proves import proves

LEAVES = """
import os, time
reader, writer = os.pipe()
if os.fork() == 0:
    os.setsid()
    print(os.getpid(), flush=True)
    os.write(writer, b"gone")
    time.sleep(1000)
os.read(reader, 4)
"""


only_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it runs programs as another account")


def sh(script: str) -> ShellTarget:
    return ShellTarget(command=("sh", "-c", script))


async def run(
    target: ShellTarget, recorder: Recorder | None = None, **fields: object
) -> Succeeded | Failed | Cancelled:
    caller = ShellCaller(allow=True, kill_after_s=0.2, drain_s=0.2)
    return await caller.call(target, a_call(recorder, **fields))  # type: ignore[arg-type]


@proves("T4")
async def test_no_program_is_run_unless_the_worker_allows_it(tmp_path: Path) -> None:
    made = tmp_path / "made"
    failed = failure_of(await ShellCaller().call(sh(f"touch {made}"), a_call()), "shell_not_allowed")
    assert not failed.retryable
    assert "ONDOT_ALLOW_SHELL=1" in failed.error.message
    assert "--allow-shell" in failed.error.message
    assert not made.exists()


@proves("E14", "W4")
async def test_the_whole_output_of_a_program_is_kept_for_a_step_that_reads_it() -> None:
    whole = result_of(await run(sh("seq -s, 1 20000 | sed 's/.*/[&]/'"), result_bytes=1_000_000))
    assert whole["json"] == list(range(1, 20_001))
    assert whole["stdout"].startswith("[1,2,3")
    assert "cut" not in whole
    cut = result_of(await run(sh("seq 1 20000"), result_bytes=1_000))
    assert cut["stdout"].startswith("1\n2\n3\n")
    assert cut["cut"] == "only the first 1,000 of 108,894 bytes of its output are kept"
    assert result_of(await run(sh("echo plain words"), result_bytes=1_000)) == {
        "exit_code": 0,
        "stdout": "plain words\n",
    }


@proves("T4")
async def test_arguments_are_passed_unchanged_and_no_shell_reads_them() -> None:
    words = ("$HOME; echo `id` | cat > /tmp/x", "*", "a b", "", "&&")
    recorder = Recorder()
    await run(ShellTarget(command=("printf", r"[%s]\n", *words)), recorder)
    assert recorder.of("stdout") == [f"[{word}]" for word in words]


@proves("T4", "T5")
@pytest.mark.parametrize("limits", [Limits(), Limits(cpu_s=1000)])
async def test_a_program_gets_the_variables_of_a_list_and_no_others(
    monkeypatch: pytest.MonkeyPatch, limits: Limits
) -> None:
    for name in os.environ:
        if name != "PATH":
            monkeypatch.delenv(name)
    given = {"HOME": "/home/ann", "USER": "ann", "LANG": "C", "LC_TIME": "C", "TZ": "UTC", "COLOUR": "blue"}
    secret = {"ONDOT_DATABASE_URL": "secret", "AWS_SECRET_ACCESS_KEY": "secret", "PGPASSWORD": "secret", "X": "secret"}
    for name, value in (given | secret).items():
        monkeypatch.setenv(name, value)
    recorder = Recorder()
    caller = ShellCaller(allow=True, confinement=Confinement(limits=limits, variables=frozenset({"COLOUR", "GONE"})))
    await caller.call(ShellTarget(command=("env",)), a_call(recorder, job_name="nightly = report"))
    lines = [line for line in recorder.of("stdout") if not line.startswith(("ONDOT_CALL_ID=", "TMPDIR=", "PATH="))]
    assert len(lines) == len(recorder.of("stdout")) - 3
    others = {line for line in lines if not line.startswith("ONDOT_")}
    assert others == {f"{name}={value}" for name, value in given.items()}
    assert sorted(line for line in lines if line.startswith("ONDOT_")) == [
        "ONDOT_ATTEMPT=3",
        "ONDOT_EXECUTION_ID=0192f3a1-5b7c-7d3e-8f90-a1b2c3d4e5f6",
        "ONDOT_FENCING_TOKEN=3",
        "ONDOT_FIRE_AT=2030-01-31T09:00:00Z",
        "ONDOT_JOB_ID=0192f3a1-0000-7000-8000-000000000001",
        "ONDOT_JOB_NAME=nightly = report",
    ]


@proves("T4")
async def test_a_program_works_in_a_directory_of_its_own_that_is_removed_with_all_in_it() -> None:
    recorder = Recorder()
    script = "pwd; echo $TMPDIR; stat -c %a .; ls -A; mkdir -p a/b; echo x > a/b/c; ln -s / root; chmod 0 a"
    assert isinstance(await run(sh(script), recorder), Succeeded)
    scratch, temporary, mode = recorder.of("stdout")
    assert (temporary, mode) == (scratch, "700")
    assert not os.path.exists(scratch)  # noqa: ASYNC240, PTH110
    for other in ("echo $TMPDIR; echo x > kept; exit 3", "echo $TMPDIR; echo x > kept; kill -9 $$"):
        await run(sh(other), recorder)
        assert not os.path.exists(recorder.of("stdout")[-1])  # noqa: ASYNC240, PTH110


@proves("T4", "P12")
async def test_no_program_is_run_without_a_directory_and_it_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/proc/no-such-directory")
    failed = failure_of(await run(sh("true")), "not_started")
    assert failed.retryable
    assert "/proc/no-such-directory" in failed.error.message


async def confined(
    target: ShellTarget, recorder: Recorder | None = None, **limits: int
) -> Succeeded | Failed | Cancelled:
    caller = ShellCaller(allow=True, confinement=Confinement(limits=Limits(**limits)), kill_after_s=0.2, drain_s=0.2)
    return await caller.call(target, a_call(recorder, timeout_s=100))


@proves("T4")
async def test_a_program_that_takes_too_much_processor_time_is_ended_and_the_limit_is_named() -> None:
    report = await confined(sh("while :; do :; done"), cpu_s=1)
    assert isinstance(report, Failed)
    assert report.error.facts["signal"] == "SIGXCPU"
    assert report.error.facts["limit"] == "cpu"
    assert "1 s of processor time (ONDOT_SHELL_CPU_S)" in report.error.message


@proves("T4")
@pytest.mark.parametrize("number", [signal.SIGXCPU, signal.SIGXFSZ])
def test_a_limit_is_named_too_if_it_ended_the_child_of_a_shell(number: signal.Signals) -> None:
    limits = Limits(cpu_s=1, file_bytes=1)
    direct, by_shell = limits.find_reached(-number, ""), limits.find_reached(128 + number, "")
    assert direct is not None
    assert direct == by_shell
    assert Limits().find_reached(-number, "File too large, out of memory") is None


@proves("T4")
async def test_a_program_that_ignores_the_limit_of_processor_time_is_killed() -> None:
    deaf = "import signal; signal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass"
    failure_of(await confined(ShellTarget(command=(sys.executable, "-c", deaf)), cpu_s=1), "signal")


@proves("T4")
async def test_a_program_that_takes_too_much_memory_fails_and_the_limit_is_named() -> None:
    hungry = ShellTarget(command=(sys.executable, "-c", "x = bytearray(1_000_000_000)"))
    failed = failure_of(await confined(hungry, memory_bytes=500_000_000), "exit_code")
    assert failed.error.facts == {"exit_code": 1, "limit": "memory"}
    assert "500,000,000 bytes of memory (ONDOT_SHELL_MEMORY_BYTES)" in failed.error.message
    assert isinstance(await confined(sh("true"), memory_bytes=500_000_000), Succeeded)


@proves("T4")
@pytest.mark.parametrize(
    "command",
    [
        ("sh", "-c", "exec yes > big"),
        ("sh", "-c", "yes > big; exit $?"),
        (sys.executable, "-c", "open('big','w').write('x'*10**6)"),
    ],
)
async def test_a_program_that_writes_too_large_a_file_fails_and_the_limit_is_named(command: tuple[str, ...]) -> None:
    report = await confined(ShellTarget(command=command), file_bytes=100_000)
    assert isinstance(report, Failed)
    assert report.error.facts["limit"] == "file_size"
    assert "100,000 bytes in one file (ONDOT_SHELL_FILE_BYTES)" in report.error.message


@proves("E4", "T4")
async def test_a_confined_program_that_cannot_be_started_is_reported_as_any_other(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("no program")
    for command in (("ondot-no-such-program",), (str(plain),), (str(tmp_path),), ("./relative",)):
        failed = failure_of(await confined(ShellTarget(command=command), cpu_s=100), "not_found")
        assert not failed.retryable
        assert command[0] in failed.error.message


@proves("T4")
async def test_a_confined_program_gets_its_words_its_input_and_the_signals_of_any_other() -> None:
    recorder = Recorder()
    await confined(ShellTarget(command=("printf", r"[%s]\n", "$HOME; `id`", "*", "")), recorder, cpu_s=100)
    assert recorder.of("stdout") == ["[$HOME; `id`]", "[*]", "[]"]
    caller = ShellCaller(allow=True, confinement=Confinement(limits=Limits(cpu_s=100)))
    assert result_of(await caller.call(sh("cat; yes | head -1"), a_call(payload=b'"in"')))["stdout"] == '"in"y\n'
    ignored = "grep SigIgn /proc/self/status"
    plain, launched = Recorder(), Recorder()
    await run(sh(ignored), plain)
    await confined(sh(ignored), launched, cpu_s=100)
    assert launched.of("stdout") == plain.of("stdout")


def unprivileged() -> Account:
    return Account.named("nobody")


async def as_nobody(target: ShellTarget, recorder: Recorder, **fields: object) -> Succeeded | Failed | Cancelled:
    confinement = Confinement(unprivileged(), variables=frozenset())
    confinement.check()
    caller = ShellCaller(allow=True, confinement=confinement, kill_after_s=0.2, drain_s=0.2)
    return await caller.call(target, a_call(recorder, **fields))  # type: ignore[arg-type]


@only_root
@proves("T4", "T5")
async def test_a_program_runs_as_another_account_without_the_workers_groups_and_rights() -> None:
    recorder = Recorder()
    script = "id -u; id -G; umask; stat -c %U .; echo $USER $LOGNAME; grep -E 'NoNewPrivs|CapEff' /proc/self/status"
    assert isinstance(await as_nobody(sh(script), recorder), Succeeded), recorder.lines
    uid, groups, umask, owner, names, privileges, new = recorder.of("stdout")
    assert int(uid) == unprivileged().uid
    assert {int(group) for group in groups.split()} == set(unprivileged().groups)
    assert (umask, owner, names) == ("0077", "nobody", "nobody nobody")
    assert int(privileges.split()[1], 16) == 0
    assert new.split() == ["NoNewPrivs:", "1"]


@only_root
@proves("T4", "T5")
async def test_a_program_of_another_account_cannot_look_into_its_worker() -> None:
    recorder = Recorder()
    look = f"head -c 1 /proc/{os.getpid()}/$f 2>/dev/null && echo opened"
    script = f"for f in environ mem maps fd/0; do {look}; done; echo done"
    await as_nobody(sh(script), recorder)
    assert recorder.of("stdout") == ["done"]


@only_root
@proves("E7", "T4")
async def test_all_processes_of_a_program_of_another_account_are_ended_by_its_timeout() -> None:
    recorder = Recorder()
    python = shutil.which("python3", path="/usr/bin") or ""
    if not python:
        pytest.skip("needs a Python that every account can run")
    script = DAEMON.format(deaf="import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)")
    script = script.replace('print("began", flush=True)', 'print("began", open(sys.argv[1]).read(), flush=True)')
    report = await as_nobody(ShellTarget(command=(python, "-c", script, "pid")), recorder, timeout_s=5)
    failure_of(report, "timeout")
    [line] = recorder.of("stdout")
    await gone(int(line.split()[1]))


@proves("T4", "T5")
def test_the_settings_limit_what_commands_get() -> None:
    given = {"shell_env": " JAVA_HOME ,NODE_ENV,", "shell_cpu_s": 3, "shell_memory_bytes": 10**9, "shell_file_bytes": 7}
    confinement = read_confinement(load_settings(allow_shell=True, **given))
    assert confinement.variables == {"JAVA_HOME", "NODE_ENV"}
    assert confinement.limits == Limits(memory_bytes=10**9, cpu_s=3, file_bytes=7)
    assert not read_confinement(load_settings(allow_shell=True)).is_launched
    with pytest.raises(Misconfigured, match="no such account"):
        read_confinement(load_settings(allow_shell=True, shell_user="no-such-user"))
    # A worker that runs no commands needs no account for them.
    assert read_confinement(load_settings(shell_user="no-such-user")).account is None


@proves("T4")
def test_an_account_that_programs_cannot_run_as_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Misconfigured, match="ONDOT_SHELL_USER=no-such-user: this machine has no such account"):
        Account.named("no-such-user")
    with pytest.raises(Misconfigured, match="commands do not run as root"):
        Account.named("root")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(Misconfigured, match="only a worker that runs as root"):
        Account.named("nobody")


@only_root
@proves("T4")
def test_a_directory_that_the_account_cannot_get_to_is_named_at_the_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "closed").mkdir(mode=0o700)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "closed"))
    with pytest.raises(Misconfigured, match=f"No command can be started as nobody in {tmp_path / 'closed'}"):
        Confinement(unprivileged()).check()
    assert list((tmp_path / "closed").iterdir()) == []


@proves("E3")
async def test_a_large_payload_arrives_whole_on_standard_input() -> None:
    payload = b'"' + b"x" * 1_000_000 + b'"'
    assert result_of(await run(ShellTarget(command=("wc", "-c")), payload=payload))["stdout"].strip() == "1000002"


@proves("E3")
@pytest.mark.parametrize("script", ["exit 0", "exec <&-; echo closed", "head -c 10 >/dev/null"])
async def test_a_program_that_does_not_read_its_input_holds_up_nothing(script: str) -> None:
    assert isinstance(await run(sh(script), payload=b'"' + b"x" * 1_000_000 + b'"'), Succeeded)


@proves("E14")
async def test_output_is_kept_line_by_line_and_its_end_is_the_result() -> None:
    recorder = Recorder()
    report = await run(sh(r"printf 'one\r\ntwo\n\nlast'; echo oops >&2"), recorder)
    assert recorder.of("stdout") == ["one", "two", "", "last"]
    assert recorder.of("stderr") == ["oops"]
    assert result_of(report) == {"exit_code": 0, "stdout": "one\r\ntwo\n\nlast"}


@proves("E14")
async def test_lines_arrive_while_the_program_runs() -> None:
    recorder = Recorder()
    running = asyncio.ensure_future(run(sh("echo first; exec sleep 1000"), recorder, timeout_s=100))
    await recorder.line("first")
    assert not running.done()
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


@proves("E14")
async def test_nul_and_broken_text_are_replaced() -> None:
    recorder = Recorder()
    report = await run(sh(r"printf 'a\0b\377\n'"), recorder)
    assert recorder.of("stdout") == ["a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}"]
    assert "\0" not in result_of(report)["stdout"]


@proves("E14")
async def test_a_line_without_end_is_cut() -> None:
    recorder = Recorder()
    report = await run(sh("head -c 1000000 /dev/zero | tr '\\0' x; echo; echo after"), recorder)
    long, after = recorder.of("stdout")
    assert long.startswith("x" * MAX_LINE_CHARACTERS + " … ")
    assert f"{1_000_000 - MAX_LINE_CHARACTERS:,} more" in long
    assert after == "after"
    assert len(result_of(report)["stdout"]) == 4096


@proves("E14")
async def test_a_flood_of_lines_is_limited_and_the_rest_is_counted() -> None:
    recorder = Recorder()
    report = await run(sh("seq 60000; echo done"), recorder)
    assert recorder.of("stdout") == [str(n) for n in range(1, MAX_LINES + 1)]
    [line] = recorder.of("log")
    assert f"{60_001 - MAX_LINES:,} more lines" in line
    assert recorder.lines[-1] == ("log", line)
    assert result_of(report)["stdout"].endswith("60000\ndone\n")


@proves("E14")
async def test_a_flood_of_long_lines_is_limited_by_characters() -> None:
    recorder = Recorder()
    await run(sh(f"head -c {MAX_CHARACTERS + 5_000_000} /dev/zero | tr '\\0' x | fold -w 8000"), recorder, timeout_s=60)
    kept = sum(len(line) for line in recorder.of("stdout"))
    assert MAX_CHARACTERS <= kept <= MAX_CHARACTERS + 8000
    assert len(recorder.of("log")) == 1


@proves("E7", "E14")
async def test_a_program_that_floods_for_ever_is_ended_by_its_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    running = asyncio.ensure_future(run(ShellTarget(command=("yes",)), recorder, timeout_s=3600))
    await recorder.count(MAX_LINES)
    # The clock is turned by hand: with a timeout of 1 s, a busy machine ended `yes` before the log was full.
    loop = asyncio.get_running_loop()
    real = loop.time
    monkeypatch.setattr(loop, "time", lambda: real() + 3600)
    failed = failure_of(await running, "timeout")
    assert failed.outcome is Outcome.TIMED_OUT
    assert len(recorder.of("stdout")) == MAX_LINES
    assert len(recorder.of("log")) == 1


@proves("E7", "E8")
async def test_a_program_without_a_timeout_runs_until_it_ends_or_is_cancelled() -> None:
    assert isinstance(await run(sh("exit 0"), timeout_s=None), Succeeded)
    recorder, cancel = Recorder(), Cancel(grace_s=100)
    running = asyncio.ensure_future(run(sh("echo began; exec sleep 1000"), recorder, timeout_s=None, cancel=cancel))
    await recorder.line("began")
    cancel.request()
    assert isinstance(await running, Cancelled)


@proves("E4")
async def test_an_exit_code_is_reported_with_the_last_lines_of_standard_error() -> None:
    failed = failure_of(await run(sh("seq 100 >&2; exit 7")), "exit_code")
    assert failed.retryable
    assert failed.error.facts == {"exit_code": 7}
    assert failed.error.detail == "\n".join(str(n) for n in range(81, 101))


@proves("E4")
async def test_a_program_ended_by_a_signal_is_reported_with_its_name() -> None:
    failed = failure_of(await run(sh("kill -KILL $$")), "signal")
    assert failed.error.facts == {"signal": "SIGKILL"}
    assert failed.retryable


@proves("E4")
async def test_a_program_that_is_not_there_is_not_retried(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("no program")
    for command in ((str(tmp_path / "nothing"),), ("ondot-no-such-program",), (str(plain),), (str(tmp_path),)):
        failed = failure_of(await run(ShellTarget(command=command)), "not_found")
        assert not failed.retryable
        assert command[0] in failed.error.message


@proves("E4")
@pytest.mark.parametrize("command", [("echo", "a\0b"), ("echo", "x" * 3_000_000)])
async def test_words_that_no_program_can_be_given_are_not_retried(command: tuple[str, ...]) -> None:
    assert not failure_of(await run(ShellTarget(command=command)), "bad_command").retryable


@proves("E7")
@pytest.mark.parametrize("script", ["{child}", 'sh -c "{child}" & wait'])
async def test_a_process_that_handles_term_may_clean_up_even_after_the_program_itself_has_ended(script: str) -> None:
    child = "trap 'echo tidied; exit 0' TERM; echo began; while :; do sleep 0.01; done"
    recorder = Recorder()
    caller = ShellCaller(allow=True, kill_after_s=10)
    calling = asyncio.ensure_future(caller.call(sh(script.format(child=child)), a_call(recorder, timeout_s=100)))
    await recorder.line("began")
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert recorder.of("stdout") == ["began", "tidied"]


@proves("E7")
async def test_a_grandchild_that_holds_the_output_open_does_not_hold_up_the_attempt() -> None:
    recorder = Recorder()
    report = await run(sh("sleep 1000 & echo $!"), recorder, timeout_s=100)
    assert isinstance(report, Succeeded)
    [pid] = recorder.of("stdout")
    await gone(int(pid))


@proves("E7")
async def test_a_process_that_has_left_the_group_does_not_either() -> None:
    recorder = Recorder()
    report = await run(ShellTarget(command=(sys.executable, "-c", LEAVES)), recorder)
    assert isinstance(report, Succeeded)
    [pid] = recorder.of("stdout")
    os.kill(int(pid), signal.SIGKILL)  # its parent is gone


DAEMON = """
import os, sys, time
parent = os.getpid()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for fd in (0, 1, 2):
            os.close(fd)
        {deaf}
        open(sys.argv[1], "w").write(str(os.getpid()))
        time.sleep(1000)
    os._exit(0)
os.wait()
while not (os.path.exists(sys.argv[1]) and open(sys.argv[1]).read()):
    time.sleep(0.01)
print("began", flush=True)
time.sleep(1000)
"""


@proves("E7")
async def test_a_timeout_ends_a_daemon_that_left_the_group_and_lost_its_parent(tmp_path: Path) -> None:
    script = DAEMON.format(deaf="")
    recorder = Recorder()
    report = await run(
        ShellTarget(command=(sys.executable, "-c", script, str(tmp_path / "pid"))), recorder, timeout_s=3
    )
    failure_of(report, "timeout")
    assert recorder.of("stdout") == ["began"]
    await gone(int((tmp_path / "pid").read_text()))


@proves("E8")
async def test_a_daemon_that_ignores_term_makes_the_cancel_one_by_force(tmp_path: Path) -> None:
    script = DAEMON.format(deaf="import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)")
    recorder, cancel = Recorder(), Cancel(grace_s=0.2)
    running = asyncio.ensure_future(
        run(ShellTarget(command=(sys.executable, "-c", script, str(tmp_path / "pid"))), recorder, cancel=cancel)
    )
    await recorder.line("began")
    cancel.request()
    report = await running
    assert isinstance(report, Cancelled)
    assert report.forced
    await gone(int((tmp_path / "pid").read_text()))


@proves("E8")
async def test_a_program_that_ends_at_term_is_cancelled_without_force_and_its_result_is_kept() -> None:
    recorder, cancel = Recorder(), Cancel(grace_s=100)
    script = "trap 'echo tidied; exit 7' TERM; echo began; while :; do sleep 0.01; done"
    running = asyncio.ensure_future(run(sh(script), recorder, cancel=cancel))
    await recorder.line("began")
    cancel.request()
    report = await running
    assert isinstance(report, Cancelled)
    assert not report.forced
    assert "exit code 7" in report.message
    assert msgspec.json.decode(report.result or "") == {"exit_code": 7, "stdout": "began\ntidied\n"}


@proves("E8")
async def test_a_program_that_ignores_term_is_killed_after_its_grace_with_all_its_processes() -> None:
    recorder, cancel = Recorder(), Cancel(grace_s=0.1)
    script = "trap '' TERM; sh -c 'sleep 1000 & echo $!; wait' & echo $!; echo began; wait; wait"
    running = asyncio.ensure_future(run(sh(script), recorder, cancel=cancel))
    await recorder.line("began")
    cancel.request()
    report = await running
    assert isinstance(report, Cancelled)
    assert report.forced
    assert "0.1 s" in report.message
    for line in recorder.of("stdout"):
        if line.isdigit():
            await gone(int(line))


@proves("E7")
async def test_a_second_cancel_ends_the_program_without_further_patience() -> None:
    recorder = Recorder()
    caller = ShellCaller(allow=True, kill_after_s=1000)
    calling = asyncio.ensure_future(
        caller.call(
            sh("trap 'echo deaf' TERM; echo began $$; while :; do sleep 0.01; done"), a_call(recorder, timeout_s=1000)
        )
    )
    pid = int((await recorder.line("began")).split()[1])
    calling.cancel()
    await recorder.line("deaf")
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    await gone(pid)


@proves("E3")
async def test_no_file_descriptor_is_left_open() -> None:
    this = psutil.Process()
    caller = ShellCaller(allow=True, kill_after_s=0.2, drain_s=0.2)
    await caller.call(sh("echo"), a_call())
    before = this.num_fds()
    for target in (sh("echo"), sh("exit 3"), ShellTarget(command=("ondot-no-such-program",))):
        for _ in range(5):
            await caller.call(target, a_call())
    assert this.num_fds() <= before + 3
