from __future__ import annotations

import pytest

from imagefactory.building.debian import accounts
from imagefactory.building.debian.system import System
from imagefactory.building.tree import Tree
from imagefactory.errors import InputError
from imagefactory.system.platforms import Platform

TEMPLATE = """\
# here are the per-package modules (the "Primary" block)
$auth_primary
# here's the fallback if no module succeeds
auth	requisite			pam_deny.so
# and here are more per-package modules (the "Additional" block)
$auth_additional
# end of pam-auth-update config
"""
UNIX = """\
Name: Unix authentication
Default: yes
Priority: 256
Auth-Type: Primary
Auth:
	[success=end default=ignore]	pam_unix.so nullok try_first_pass
Auth-Initial:
	[success=end default=ignore]	pam_unix.so nullok
Session-Type: Additional
Session:
	required	pam_unix.so
"""
KRB5 = """\
Name: Kerberos
Default: yes
Priority: 704
Auth-Type: Primary
Auth:
	[success=end default=ignore]	pam_krb5.so
"""
HOME = "Name: Home\nDefault: no\nPriority: 0\nSession-Type: Additional\nSession:\n\toptional x.so\n"


@pytest.fixture
def system() -> System:
    tree = Tree()
    source = "usr/share/base-passwd"
    tree.file(
        f"{source}/passwd.master", "root:*:0:0:root:/root:/bin/bash\n_apt:*:42:65534::/x:/n\n"
    )
    tree.file(f"{source}/group.master", "root:*:0:\nshadow:*:42:\nsudo:*:27:root\n")
    accounts.create(found := _system(tree))
    return found


def _system(tree: Tree) -> System:
    return System(
        tree=tree, packages={}, platform=Platform.AMD64, suite="trixie", epoch=10 * 86400 + 5
    )


def test_passwords_move_to_files_that_only_root_and_the_group_shadow_can_read(
    system: System,
) -> None:
    accounts.shadow(system)
    assert system.tree.text("etc/passwd").splitlines()[0] == "root:x:0:0:root:/root:/bin/bash"
    assert system.tree.text("etc/group").splitlines()[2] == "sudo:x:27:root"
    assert system.tree.text("etc/shadow").splitlines()[0] == "root:*:10:0:99999:7:::"
    assert system.tree.text("etc/gshadow").splitlines()[2] == "sudo:*::root"
    entry = system.tree.entries["etc/shadow"]
    assert (entry.mode, entry.uid, entry.gid) == (0o640, 0, 42)


def test_a_user_or_group_that_does_not_exist_is_refused_by_name(system: System) -> None:
    accounts.require_user(system, "_apt")
    with pytest.raises(InputError, match="no user apt"):
        accounts.require_user(system, "apt")
    with pytest.raises(InputError, match="no group games"):
        accounts.group_id(system.tree, "games")


def test_shells_are_listed_with_their_real_paths_once(system: System) -> None:
    tree = system.tree
    tree.symlink("bin", "usr/bin")
    tree.file("usr/share/debianutils/shells", "# comment\n/bin/sh\n/usr/bin/sh\n")
    tree.file("usr/share/debianutils/shells.d/dash", "/bin/dash\n/bin/sh\n")
    accounts.shells(system)
    assert tree.text("etc/shells").splitlines() == [
        *("# comment", "/bin/sh", "/usr/bin/sh", "/bin/dash", "/usr/bin/dash"),
    ]
    assert tree.text("var/lib/shells.state").split() == [
        *("/bin/sh", "/usr/bin/sh", "/bin/dash", "/usr/bin/dash"),
    ]


def test_pam_uses_the_default_profiles_in_the_order_of_their_priority(system: System) -> None:
    tree = system.tree
    for name, text in (("unix", UNIX), ("krb5", KRB5), ("mkhomedir", HOME)):
        tree.file(f"usr/share/pam-configs/{name}", text)
    for kind in ("auth", "account", "password", "session", "session-noninteractive"):
        tree.file(f"usr/share/pam/common-{kind}", TEMPLATE)
    accounts.pam(system)
    assert [line for line in tree.text("etc/pam.d/common-auth").splitlines() if line[0] != "#"] == [
        "auth\t[success=2 default=ignore]\tpam_krb5.so ",
        "auth\t[success=1 default=ignore]\tpam_unix.so nullok try_first_pass",
        "auth\trequisite\t\t\tpam_deny.so",
    ]
    session = tree.text("etc/pam.d/common-session").splitlines()
    assert session[1] == "session\t[default=1]\t\t\tpam_permit.so"
    assert session[-2:] == ["session\trequired\tpam_unix.so ", "# end of pam-auth-update config"]
    assert tree.text("var/lib/pam/seen").split() == ["krb5", "unix", "mkhomedir"]
    assert tree.text("var/lib/pam/session").startswith("Module: null\n[default=1]")


def test_a_group_of_a_package_gets_the_lowest_free_number_once(system: System) -> None:
    for name in ("rdma", "rdma", "_ssh"):
        accounts.add_group(system, name)
    accounts.shadow(system)
    assert system.tree.text("etc/group").splitlines()[3:] == ["rdma:x:100:", "_ssh:x:101:"]
    assert system.tree.text("etc/gshadow").splitlines()[3:] == ["rdma:!::", "_ssh:!::"]
