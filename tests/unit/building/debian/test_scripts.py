from __future__ import annotations

from pathlib import Path

import pytest
from support.debs import deb

from imagefactory.building.debian import actions, package, scripts
from imagefactory.building.debian.package import Package
from imagefactory.errors import InputError

SCRIPT = """\
#!/bin/sh
set -e

ldconfig -r /lib/x86_64-linux-gnu
dpkg -L libx:amd64
# Automatically added by dh_installsystemd/13.11.4
if [ "$1" = configure ]; then deb-systemd-helper enable x; fi
# End automatically added section
"""
TABLE = """
[[one]]
postinst = ["{first}", "{second}"]
why = "both"
do = [["folder", "srv/both", "0755"]]
[[one]]
postinst = ["{second}"]
why = "the second does more"
do = [["folder", "srv/more", "0755"]]
"""


def read(tmp_path: Path, postinst: str) -> Package:
    path = deb(tmp_path, "one", control={"postinst": postinst})
    return package.read(path, tmp_path / "spool")


def test_a_script_is_the_same_one_in_another_build() -> None:
    other = (
        SCRIPT.replace("x86_64", "aarch64").replace("amd64", "arm64").replace("13.11.4", "13.24")
    )
    assert scripts.identity(other) == scripts.identity(SCRIPT)
    assert scripts.identity(SCRIPT.replace("ldconfig", "rm")) != scripts.identity(SCRIPT)


@pytest.mark.parametrize(
    ("tool", "line", "known"),
    [
        ("dh_installdeb", 'dpkg-maintscript-helper rm_conffile /etc/x 1.0 -- "$@"', True),
        ("dh_installdeb", "rm -r /etc/x", False),
        ("dh_installmenu", "update-menus", True),
        ("dh_installsysusers", "systemd-sysusers x.conf", False),
    ],
)
def test_sections_of_debhelper_are_known_by_their_tool(tool: str, line: str, known: bool) -> None:
    script = f"""\
#!/bin/sh
set -e
# Automatically added by {tool}/13.24.2
{line}
# End automatically added section
exit 0
"""
    assert scripts.does_nothing(script) is known
    assert (line in scripts.normalized(script)) is not known


def test_a_script_does_what_all_rows_with_its_hash_say(tmp_path: Path) -> None:
    first, second = "#!/bin/sh\nmkdir -p /srv/both\n", "#!/bin/sh\nmkdir -p /srv/both /srv/more\n"
    text = TABLE.format(first=scripts.identity(first), second=scripts.identity(second))
    table = scripts.read(text)
    for script, folders in ((first, ["srv/both"]), (second, ["srv/both", "srv/more"])):
        found = read(tmp_path, script)
        scripts.check([found], table)
        assert [step[1] for step in scripts.steps(found, table)] == folders
    with pytest.raises(InputError, match="the postinst script of one"):
        scripts.check([read(tmp_path, "#!/bin/sh\nmkdir /srv/new\n")], table)


def test_every_step_of_the_table_exists() -> None:
    steps = {step[0] for rows in scripts.table().values() for row in rows for step in row.steps}
    assert steps - actions.STEPS.keys() == set()


def test_every_row_of_the_table_is_about_some_script() -> None:
    rows = [row for rows in scripts.table().values() for row in rows]
    assert all(any(row.hashes.values()) and row.why for row in rows)
