"""`cluster.yaml`: what it declares, and what is wrong with it, by line."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagefactory.cluster import declaration
from imagefactory.cluster.declaration import Cluster
from imagefactory.errors import InputError
from imagefactory.examples import examples

TWO = """\
image: r.local/vllm:1
model: Qwen/Qwen3-0.6B
nodes:
  - host: spark1
    address: 10.0.0.1
  - host: me@spark2:2222
    address: 10.0.0.2
"""


def load(folder: Path, text: str) -> Cluster:
    path = folder / "cluster.yaml"
    path.write_text(text)
    return declaration.load(path)


def test_the_example_is_a_cluster_of_two_nodes_with_rdma(tmp_path: Path) -> None:
    found = load(tmp_path, examples.cluster())
    assert [node.host for node in found.nodes] == ["spark1", "spark2"]
    assert found.nodes[1].rdma == ("rocep1s0f1", "roceP2p1s0f1")
    assert found.args[:2] == ("--gpu-memory-utilization", "0.8")


@pytest.mark.parametrize(
    ("role", "head"), [("head", "me@spark2:2222"), ("worker", "spark1")], ids=str
)
def test_the_head_is_the_node_that_says_so_or_the_first(
    tmp_path: Path, role: str, head: str
) -> None:
    assert load(tmp_path, f"{TWO}    role: {role}\n").nodes[0].host == head
    assert load(tmp_path, TWO).nodes[0].host == "spark1"


#: What is changed, the line that is blamed, and the code.
WRONG = [
    (("r.local/vllm:1", "-v /:/host"), 1, "cluster-image"),
    (("r.local/vllm:1", "https://u:p@h/x"), 1, "cluster-image"),
    (("r.local/vllm:1", "h.local/x@sha256:12"), 1, "cluster-image"),
    (("image: r.local/vllm:1\n", ""), 1, "cluster-image"),
    (("image:", "cell: a\nimage:"), 1, "cluster-image"),
    (("model: Qwen/Qwen3-0.6B", "model: --help"), 2, "cluster-model"),
    (("model: Qwen/Qwen3-0.6B", "model: 'Qwen/Qwen3-0.6B '"), 2, "cluster-model"),
    (("model: Qwen/Qwen3-0.6B", "modle: x"), 2, "cluster-unknown-key"),
    (("model: Qwen/Qwen3-0.6B\n", ""), 1, "cluster-model"),
    (("model:", "recipe: x\nmodel:"), 1, "cluster-model"),
    (("model: Qwen/Qwen3-0.6B", "recipe: x"), 2, "cluster-recipe"),
    (("host: spark1", "host: -oProxyCommand=sh"), 4, "cluster-host"),
    (("me@spark2:2222", "me@spark2:65536"), 6, "cluster-host"),
    (("me@spark2:2222", "me@spark2:0"), 6, "cluster-host"),
    (("me@spark2:2222", "spark1"), 6, "cluster-same-host"),
    (("me@spark2:2222", "me@SPARK1:22"), 6, "cluster-same-host"),
    (("10.0.0.2", "10.0.0.1"), 7, "cluster-same-address"),
    (("10.0.0.2", "127.0.0.1"), 7, "cluster-address"),
    (("10.0.0.2", "0.0.0.0"), 7, "cluster-address"),  # noqa: S104 - a mistake
    (("10.0.0.2", "fd00::2"), 3, "cluster-address"),
    (("10.0.0.2", "spark2"), 7, "cluster-address"),
    (("10.0.0.1", "10.0.0.1\n    interfaces: [a b]"), 6, "cluster-device"),
    (("10.0.0.1", "10.0.0.1\n    rdma: ['']"), 6, "cluster-device"),
    (("model:", "args: meta/Model --seed 1\nmodel:"), 2, "cluster-args"),
    (("model:", "args: --nnodes=2\nmodel:"), 2, "cluster-derived-option"),
    (("model:", "args: --port 1\nmodel:"), 2, "cluster-derived-option"),
    (("model:", "args: -tp 3\nmodel:"), 2, "cluster-parallel-size"),
    (("model:", "args: --tensor_parallel_size=1 -pp 2\nmodel:"), 0, ""),
    (("model:", "args: -tp 0\nmodel:"), 2, "cluster-parallel-size"),
    (("model:", f"args: -tp {'9' * 5000}\nmodel:"), 2, "cluster-parallel-size"),
    (("model:", "args: '\"'\nmodel:"), 2, "cluster-args"),
    (("model:", "port: 70000\nmodel:"), 2, "cluster-port"),
    (("model:", "name: A B\nmodel:"), 2, "cluster-name"),
    (("model:", "cache: ~/.cache\nmodel:"), 2, "cluster-mount"),
    (("model:", "user: me\nmodel:"), 2, "cluster-user"),
    (("model:", "user: '0'\nmodel:"), 2, "cluster-user"),
    (("model:", "mounts: ['/a:b']\nmodel:"), 2, "cluster-mount"),
    (("model:", "mounts: ['/a:/x', '/b:/x/:ro']\nmodel:"), 2, "cluster-mount"),
    (("model:", "mounts: ['/a:/root/.cache']\nmodel:"), 2, "cluster-mount"),
    (("model:", "user: '7'\nmounts: ['/a:/tmp/home-7/.cache']\nmodel:"), 3, "cluster-mount"),
    (("model:", "mounts: ['/a:/tunings']\nmodel:"), 2, "cluster-mount"),
    (
        (
            "model:",
            "environment: {VLLM_TUNED_CONFIG_FOLDER: /tunings}\nmounts: ['/a:/tunings']\nmodel:",
        ),
        0,
        "",
    ),
    (("model:", "mounts: ['/a:/x', '/a:/x/y']\nmodel:"), 0, ""),
    (("model:", "port: 29501\nmodel:"), 2, "cluster-port"),
    (("model:", "port: 6379\nexecutor: ray\nmodel:"), 2, "cluster-port"),
    (("model:", "port: 6379\nmodel:"), 0, ""),
    (("model:", "pass_on: [HF_TOKEN=x]\nmodel:"), 2, "cluster-variable"),
    (("model:", "environment: {A-B: c}\nmodel:"), 2, "cluster-variable"),
    (("model:", "executor: slurm\nmodel:"), 2, "cluster-wrong-value"),
]


@pytest.mark.parametrize(("change", "line", "code"), WRONG, ids=str)
def test_each_mistake_is_reported_with_its_line(
    tmp_path: Path, change: tuple[str, str], line: int, code: str
) -> None:
    text = TWO.replace(*change)
    assert text != TWO
    if not code:
        load(tmp_path, text)
        return
    with pytest.raises(InputError) as caught:
        load(tmp_path, text)
    found = [(problem.where, problem.code) for problem in caught.value.problems]
    assert (f"{tmp_path}/cluster.yaml:{line}", code) in found
    assert all(problem.fix for problem in caught.value.problems)


def test_advice_is_about_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="SOURCE:TARGET"):
        load(tmp_path, TWO.replace("model:", "user: '7'\nmounts: [a]\nmodel:"))


@pytest.mark.parametrize("roles", [("head", "head"), ("worker", "worker")])
def test_there_is_exactly_one_head(tmp_path: Path, roles: tuple[str, str]) -> None:
    first, second = (f"\n    role: {role}" for role in roles)
    text = TWO.replace("10.0.0.1", f"10.0.0.1{first}").replace("10.0.0.2", f"10.0.0.2{second}")
    with pytest.raises(InputError, match="cluster-heads"):
        load(tmp_path, text)


def test_a_cluster_without_nodes_and_all_other_mistakes_are_reported_at_once(
    tmp_path: Path,
) -> None:
    with pytest.raises(InputError) as caught:
        load(tmp_path, "name: '-'\nmodel: ''\nport: 0\nnodes: []\n")
    codes = {problem.code.removeprefix("cluster-") for problem in caught.value.problems}
    assert codes == {"name", "model", "port", "nodes", "image"}


def test_an_account_in_the_name_of_an_image_is_not_shown(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        load(tmp_path, TWO.replace("r.local/vllm:1", "me:s3cret@r.local/vllm:1"))
    assert "s3cret" not in str(caught.value)


def test_addresses_may_be_of_ipv6_and_are_as_systems_write_them(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(TWO.replace("10.0.0.1", "FD00:0::1").replace("10.0.0.2", "fd00::2"))
    found = declaration.load(path)
    assert [one.address for one in found.nodes] == ["fd00::1", "fd00::2"]
    path.write_text(path.read_text().replace("nodes:", "executor: ray\nnodes:"))
    with pytest.raises(InputError, match="Ray's nodes have IPv4 addresses"):
        declaration.load(path)
    path.write_text(TWO.replace("10.0.0.1", "FD00:0::1").replace("10.0.0.2", "fd00::1"))
    with pytest.raises(InputError, match="fd00::1 is also that of the node"):
        declaration.load(path)


def test_a_single_node_may_be_this_machine(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(TWO.partition("  - host: me")[0].replace("10.0.0.1", "127.0.0.1"))
    assert declaration.load(path).nodes[0].address == "127.0.0.1"


@pytest.mark.parametrize("text", ["", "- a", "text", "3"])
def test_a_file_without_keys_is_no_cluster(tmp_path: Path, text: str) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=r"(?s)where KEY: VALUE is due.*fix: write its keys"):
        declaration.load(path)
