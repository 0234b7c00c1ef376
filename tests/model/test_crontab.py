"""Crontabs as people and packages write them: entries, variables, users, input, names, and lines that are left."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ondot.model.crontab import Crontab, names_of, read_crontab, slug_of
from tests.proves import proves

DEBIAN = """\
# /etc/crontab: system-wide crontab
# Unlike any other crontab you don't have to run the `crontab'
# command to install the new version when you edit this file

SHELL=/bin/sh
# You can also override PATH, but by default, newer versions inherit it from the environment
#PATH=/usr/local/sbin:/usr/local/bin:/sbin:/bin:/usr/sbin:/usr/bin

# Example of job definition:
# .---------------- minute (0 - 59)
# |  .------------- hour (0 - 23)
# |  |  |  |  |
# *  *  *  *  * user-name command to be executed
17 *	* * *	root	cd / && run-parts --report /etc/cron.hourly
25 6	* * *	root	test -x /usr/sbin/anacron || { cd / && run-parts --report /etc/cron.daily; }
47 6	* * 7	root	test -x /usr/sbin/anacron || { cd / && run-parts --report /etc/cron.weekly; }
52 6	1 * *	root	test -x /usr/sbin/anacron || { cd / && run-parts --report /etc/cron.monthly; }
#
"""
PACKAGES = {
    "certbot": (
        (
            "# /etc/cron.d/certbot: crontab entries for the certbot package\n#\nSHELL=/bin/sh\nPATH=/usr/bin:/bin\n\n"
            "0 */12 * * * root test -x /usr/bin/certbot -a \\! -d /run/systemd/system &&"
            " perl -e 'sleep int(rand(43200))' && certbot -q renew --no-random-sleep-on-renew\n"
        ),
        ["0 */12 * * *"],
    ),
    "e2scrub_all": (
        (
            "30 3 * * 0 root test -e /run/systemd/system || SERVICE_MODE=1 /usr/lib/e2fsprogs/e2scrub_all_cron\n"
            "10 3 * * * root test -e /run/systemd/system || SERVICE_MODE=1 /sbin/e2scrub_all -A -r\n"
        ),
        ["30 3 * * 0", "10 3 * * *"],
    ),
    "php": (
        (
            "09,39 *     * * *     root   [ -x /usr/lib/php/sessionclean ] &&"
            " if [ ! -d /run/systemd/system ]; then /usr/lib/php/sessionclean; fi\n"
        ),
        ["09,39 * * * *"],
    ),
    "sysstat": (
        (
            "# The first element of the path\nPATH=/usr/lib/sysstat:/usr/bin\n\n# Activity reports every 10 minutes\n"
            "5-55/10 * * * * root command -v debian-sa1 > /dev/null && debian-sa1 1 1\n\n"
            "59 23 * * * root command -v debian-sa1 > /dev/null && debian-sa1 60 2\n"
        ),
        ["5-55/10 * * * *", "59 23 * * *"],
    ),
}
OWN = r"""MAILTO="ada@example.com"
CRON_TZ=Europe/Berlin
HOME=/srv/app
# Nightly report
0 2 * * 1-5 /usr/bin/python3 /srv/app/report.py --day yesterday >> /var/log/report.log 2>&1
*/5 * * * * cd /srv/app && ./poll.sh
@daily mail -s hello bob%Dear Bob,%50\% off%
@reboot /srv/app/start
@every_minute date
0~59 3 * * * /srv/random
-0 4 * * * quiet
"""


def expressions(found: Crontab) -> list[str]:
    return [entry.expression for entry in found.entries]


@proves("D6")
def test_the_crontab_of_debian_is_taken_over() -> None:
    found = read_crontab(DEBIAN)
    assert (found.has_users, found.left) == (True, ())
    assert expressions(found) == ["17 * * * *", "25 6 * * *", "47 6 * * 7", "52 6 1 * *"]
    assert {entry.user for entry in found.entries} == {"root"}
    assert [name for name, _ in names_of(found.entries)] == [
        f"run-parts-cron.{each}" for each in ("hourly", "daily", "weekly", "monthly")
    ]
    assert [entry.comment for entry in found.entries] == [None] * 4


@proves("D6")
@pytest.mark.parametrize("package", PACKAGES)
def test_crontabs_of_packages_are_taken_over(package: str) -> None:
    text, expected = PACKAGES[package]
    found = read_crontab(text)
    assert (found.has_users, found.left, expressions(found)) == (True, (), expected)
    assert len({key for _, key in names_of(found.entries)}) == len(expected)


def test_a_comment_belongs_to_the_entry_below_it() -> None:
    found = read_crontab(PACKAGES["sysstat"][0])
    assert [entry.comment for entry in found.entries] == ["Activity reports every 10 minutes", None]
    assert found.entries[0].script.startswith("export PATH='/usr/lib/sysstat:/usr/bin'\ncd || exit\n")


@proves("D6")
def test_a_crontab_of_a_user_has_zones_variables_input_and_lines_that_are_left() -> None:
    found = read_crontab(OWN)
    assert not found.has_users
    assert expressions(found) == ["0 2 * * 1-5", "*/5 * * * *", "@daily", "* * * * *", "0 4 * * *"]
    report, poll, mail, *_ = found.entries
    assert (report.timezone, report.comment, report.shell) == ("Europe/Berlin", "Nightly report", "/bin/sh")
    assert report.script.startswith("export HOME='/srv/app'\ncd || exit\n/usr/bin/python3 ")
    assert (mail.command, mail.stdin) == ("mail -s hello bob", "Dear Bob,\n50% off\n")
    assert mail.script.endswith("{\nmail -s hello bob\n} <<'INPUT'\nDear Bob,\n50% off\nINPUT")
    assert [(left.line, left.why.split()[0]) for left in found.left] == [(8, "@reboot"), (10, "a")]
    assert [name for name, _ in names_of(found.entries)] == ["report-yesterday", "poll", "mail-hello", "date", "quiet"]
    assert poll.comment is None


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("* * * * *", "neither"),
        ("once in a while", "neither"),
        ("@hourly", "neither"),
        ("@fortnightly x", "not known"),
        ("1 2 3 4 ; x", "neither"),
        ("* * * * * echo \x1b[31m", "cannot be shown"),
        ("* * * * * echo \udcff", "cannot be shown"),
    ],
)
def test_a_line_that_is_not_taken_over_has_a_reason(line: str, why: str) -> None:
    found = read_crontab(f"\n{line}\n* * * * * fine")
    assert [entry.command for entry in found.entries] == ["fine"]
    [left] = found.left
    assert left.line == 2
    assert why in left.why


@proves("D6")
def test_keys_stay_when_a_schedule_changes_and_lines_move() -> None:
    before = dict(names_of(read_crontab("0 1 * * * a\n0 2 * * * b x\n").entries))
    after = dict(names_of(read_crontab("# new\n5 5 * * * c\n0 3 * * * b x\n0 1 * * * a\n").entries))
    assert before.items() <= after.items()
    twice = names_of(read_crontab("0 1 * * * a\n0 2 * * * a\n0 2 * * * a\n").entries)
    assert len({key for _, key in twice}) == len({name for name, _ in twice}) == 3
    assert names_of(read_crontab("0 2 * * * a\n0 1 * * * a\n").entries)[1] == twice[0]


@pytest.mark.parametrize(
    ("command", "slug"),
    [
        ("/usr/local/bin/backup.sh --full /srv", "backup-srv"),
        ("FOO=1 nice -n 19 /opt/x/run", "run"),
        ("cd /srv && /usr/bin/env python3 manage.py clearsessions", "manage-clearsessions"),
        (":", "command"),
        ("'", "command"),
        ("é", "command"),
        ("x" * 500, "x" * 60),
    ],
)
def test_names_come_from_the_command(command: str, slug: str) -> None:
    assert slug_of(command) == slug


@given(st.text(max_size=300))
def test_any_text_is_read_with_one_outcome_for_each_line(text: str) -> None:
    for has_users in (True, False, None):
        found = read_crontab(text, has_users=has_users)
        lines = [entry.line for entry in found.entries] + [left.line for left in found.left]
        assert len(lines) == len(set(lines))
        keys = [key for _, key in names_of(found.entries)]
        assert len(keys) == len(set(keys))
