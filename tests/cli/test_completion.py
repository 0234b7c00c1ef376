"""Completion as people see it: real bash, zsh and fish, with the script of `ondot completion` and a server."""

import asyncio
import os
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ondot.cli.complete import PATIENCE, _flag, _words_of_bash, completions_of
from ondot.cli.completion import SCRIPTS, Shell
from tests.cli.running import ondot
from tests.proves import proves
from tests.ui.serving import served
from tests.world import World, every, job

HOSTILE = "a`touch pwned`$(touch pwned);'\"* ß"
NAMES = ["nightly export", "nightly:import", "nightly", HOSTILE]

ASK = {
    Shell.BASH: """
source {script}
COMP_LINE={line}; COMP_POINT=${{#COMP_LINE}}; COMP_WORDS=({words}); COMP_CWORD=$(({count} - 1))
_ondot ondot; printf '%s\\n' "${{COMPREPLY[@]}}"
""",
    Shell.ZSH: """
compdef() {{ :; }}; compadd() {{ print -rl -- "${{values[@]}}"; }}; _files() {{ :; }}
source {script}
words=({words}); CURRENT={count}
_ondot
""",
    Shell.FISH: """
source {script}
complete -C {line} | string replace -r '\\t.*' ''
""",
}


@pytest.fixture
def command(tmp_path: Path) -> Path:
    """`ondot` on the path, as in an installation."""
    program = tmp_path / "bin" / "ondot"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m ondot "$@"\n')
    program.chmod(0o755)
    return program


def complete(shell: Shell, command: Path, url: str, *words: str) -> list[str]:
    """What a shell offers for the last word."""
    script = command.parent / shell.value
    script.write_text(SCRIPTS[shell])
    line = " ".join(["ondot", *words])
    split = line.replace(":", " : ") if shell is Shell.BASH else line
    typed = [*(shlex.quote(word) for word in split.split()), *(["''"] if line.endswith(" ") else [])]
    text = ASK[shell].format(
        script=shlex.quote(str(script)), line=shlex.quote(line), words=" ".join(typed), count=len(typed)
    )
    options = {Shell.BASH: ["--norc"], Shell.ZSH: ["-f"], Shell.FISH: ["--no-config"]}[shell]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ONDOT_")}
    done = subprocess.run(
        [shell.value, *options, "-c", text],
        env=environment
        | {"PATH": f"{command.parent}:{environment['PATH']}", "ONDOT_URL": url, "HOME": str(command.parent)}
        | {PATIENCE: "30"},
        cwd=command.parent,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    assert not (command.parent / "pwned").exists(), "a name was evaluated"
    return sorted(filter(None, done.stdout.splitlines()))


@proves("D5")
@pytest.mark.parametrize(
    "shell",
    [
        pytest.param(
            shell,
            marks=pytest.mark.skipif(
                shutil.which(shell.value) is None, reason=f"no {shell} on this machine: apt-get install {shell}"
            ),
        )
        for shell in Shell
    ],
)
async def test_a_shell_completes_commands_options_and_what_the_server_knows(
    world: World, command: Path, shell: Shell
) -> None:
    await world.submit_all([job(name, schedule=every(3600, world.now)) for name in NAMES])
    async with served(world.database) as page:

        async def offered(*words: str) -> list[str]:
            return await asyncio.to_thread(complete, shell, command, page.url, *words)

        assert await offered("job", "pau") == ["pause"]
        assert await offered("execution", "cancel", "--qu") == ["--query"]
        names = ["nightly", "nightly export", "nightly:import"]
        if shell is Shell.BASH:
            assert await offered("job", "run", "ni") == sorted(name.replace(" ", "\\ ") for name in names)
            assert await offered("job", "run", "nightly:i") == ["import"], "bash takes the colon for a word"
            assert (await offered("job", "run", ""))[0] == "a\\`touch\\ pwned\\`\\$\\(touch\\ pwned\\)\\;\\'\\\"\\*\\ ß"
        elif shell is Shell.ZSH:
            assert await offered("job", "run", "ni") == names
            assert HOSTILE in await offered("job", "run", "")
        else:
            assert [each.replace("\\", "").strip("'") for each in await offered("job", "run", "ni")] == names
            assert len(await offered("job", "run", "")) == 4


@proves("D5")
async def test_a_server_that_is_away_hangs_or_refuses_leaves_the_prompt_alone(world: World) -> None:
    silent = socket.create_server(("127.0.0.1", 0))
    place = f"http://127.0.0.1:{silent.getsockname()[1]}"
    away = socket.create_server(("127.0.0.1", 0))
    closed = f"http://127.0.0.1:{away.getsockname()[1]}"
    away.close()
    with silent:
        for url in (place, closed, "nonsense", "http://[", "https://127.0.0.1:1"):
            done = ondot("job", "run", "x", url=url, python=COMPLETE)
            assert (done.code, done.out, done.err) == (0, "", ""), url
    async with served(world.database, auth="on") as page:
        refused = await asyncio.to_thread(
            lambda: ondot("job", "run", "x", url=page.url, api_key="ondk_wrong", python=COMPLETE)
        )
        assert (refused.code, refused.out, refused.err) == (0, "", "")


COMPLETE = "import os; os.environ['_ONDOT_COMPLETE'] = 'fish'; from ondot.cli import main; main()"


@proves("D5")
def test_what_is_typed_in_bash_is_split_as_bash_does() -> None:
    for line, current, expected in (
        ("ondot job ru", "ru", (["job"], "ru", "")),
        ("ondot job run ", "", (["job", "run"], "", "")),
        ("ondot job run 'my j", "'my j", (["job", "run"], "my j", "")),
        ("ondot job run my\\ j", "my\\ j", (["job", "run"], "my j", "")),
        ("ondot job run a:b", "b", (["job", "run"], "a:b", "a:")),
        ("ondot job run a:", ":", (["job", "run"], "a:", "a:")),
        ("ondot job list --pool=de", "de", (["job", "list"], "--pool=de", "--pool=")),
        ("X=1 ondot job ru", "ru", (["job"], "ru", "")),
    ):
        assert _words_of_bash(line, "ondot", current) == expected, line


@proves("D5")
def test_the_flags_before_a_command_choose_the_server() -> None:
    assert _flag("--context", ["--context", "prod", "job"]) == "prod"
    assert _flag("--context", ["--tenant", "acme", "--context=prod", "job"]) == "prod"
    assert _flag("--tenant", ["--context", "prod", "--tenant", "acme", "job"]) == "acme"
    assert _flag("--tenant", ["key", "list", "--tenant", "acme"]) is None, "that of the command"
    assert _flag("--context", ["--context"]) is None


@proves("D5")
def test_a_name_is_offered_where_it_says_which_one_is_meant() -> None:
    def item(kind: str, id_: str, name: str, **fields: str | None) -> dict[str, str | None]:
        return {"kind": kind, "id": id_, "name": name, "key": None, "match": "prefix", "state": "ACTIVE"} | {
            "about": "hourly",
            **fields,
        }

    items = [item("job", "1", "a"), item("job", "2", "twice"), item("job", "3", "twice"), item("job", "4", "-x")]
    assert completions_of(items, "") == [
        ("a", "ACTIVE hourly"),
        ("2", "ACTIVE twice hourly"),
        ("3", "ACTIVE twice hourly"),
    ], "nobody can type a name that begins with a dash"
    assert completions_of([item("job", "1", "report", key="r/daily")], "r/") == [("r/daily", "ACTIVE hourly")]
    assert completions_of([item("execution", "019a", "a")], "01") == [("019a", "ACTIVE a hourly")]
