"""What runs on each node of a cluster."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.program import Run, run

from imagefactory import opening
from imagefactory.cluster import cluster as clusters
from imagefactory.cluster import declaration
from imagefactory.cluster.declaration import Cluster
from imagefactory.errors import Problem
from imagefactory.examples import examples
from imagefactory.launching.launching import Launch
from imagefactory.matrix import matrix
from imagefactory.recipes import checking
from imagefactory.recipes.checking import Checked

__all__ = ["run"]


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    path = tmp_path / "cluster.yaml"
    path.write_text(examples.cluster())
    return declaration.load(path)


def launches(cluster: Cluster) -> list[Launch]:
    return [member.launch for member in clusters.members(cluster, "vllm:1")]


def test_the_nodes_of_vllms_own_executor_have_a_rank_and_the_heads_address(
    cluster: Cluster,
) -> None:
    head, worker = (" ".join(one.command) for one in launches(cluster))
    together = "--nnodes 2 --node-rank {} --master-addr 192.168.100.10 --master-port 29501"
    assert head.startswith("serve meta-llama/Llama-3.3-70B-Instruct --port 8000 ")
    assert head.endswith(together.format(0))
    assert worker.endswith(f"{together.format(1)} --headless")
    assert "--tensor-parallel-size 2" in head


def test_a_size_that_the_user_chose_stays(cluster: Cluster) -> None:
    sized = replace(cluster, args=("--pipeline-parallel-size", "2"))
    assert "--tensor-parallel-size" not in launches(sized)[0].command


def test_ray_starts_on_the_head_before_its_server_and_on_workers_alone(cluster: Cluster) -> None:
    head, worker = launches(replace(cluster, executor="ray"))
    bash, option, script, name, *words = head.command
    assert (bash, option, name) == ("bash", "-c", "bash")
    assert "ray start --head --port=6379 --node-ip-address=192.168.100.10" in script
    assert script.endswith('&& exec /opt/imagefactory/entrypoint serve "$@"')
    assert words[0] == "meta-llama/Llama-3.3-70B-Instruct"
    assert words[-2:] == ["--distributed-executor-backend", "ray"]
    assert "until (: </dev/tcp/192.168.100.10/6379) 2>/dev/null" in worker.command[2]
    assert worker.command[2].endswith("exec /opt/imagefactory/entrypoint ray-worker")
    assert worker.environment["RAY_HEAD_ADDRESS"] == "192.168.100.10:6379"
    assert worker.environment["RAY_NODE_IP"] == "192.168.100.11"


def test_a_single_node_serves_as_it_would_without_a_cluster(cluster: Cluster) -> None:
    (one,) = launches(replace(cluster, nodes=cluster.nodes[:1]))
    assert not {"--nnodes", "--headless", "--distributed-executor-backend"} & {*one.command}


def test_rdma_is_asked_for_by_name_so_that_nccl_cannot_fall_back_to_tcp(cluster: Cluster) -> None:
    one = launches(cluster)[0]
    assert one.environment == {
        "VLLM_HOST_IP": "192.168.100.10",
        "GLOO_SOCKET_IFNAME": "enp1s0f1np1",
        "NCCL_SOCKET_IFNAME": "=enp1s0f1np1,enP2p1s0f1np1",
        "NCCL_NET": "IB",
        "NCCL_IB_HCA": "=rocep1s0f1,roceP2p1s0f1",
    }
    assert (one.devices, one.unlimited_memlock) == (("/dev/infiniband",), True)
    assert one.host_network


def test_nodes_without_rdma_use_tcp_and_get_no_devices(cluster: Cluster) -> None:
    nodes = tuple(replace(node, rdma=()) for node in cluster.nodes)
    one = launches(replace(cluster, nodes=nodes))[0]
    assert one.environment["NCCL_IB_DISABLE"] == "1"
    assert (one.devices, one.unlimited_memlock) == ((), False)


def test_the_users_variables_win(cluster: Cluster) -> None:
    own = launches(replace(cluster, environment=(("NCCL_NET", "Socket"), ("A", "b"))))[0]
    assert (own.environment["NCCL_NET"], own.environment["A"]) == ("Socket", "b")


def test_init_writes_an_example_that_show_accepts_and_overwrites_nothing(
    run: Run, tmp_path: Path
) -> None:
    assert run("cluster", "init", cwd=tmp_path).code == 0
    shown = run("cluster", "show", cwd=tmp_path)
    assert shown.code == 0
    assert shown.out.count("docker run") == 2
    again = run("cluster", "init", cwd=tmp_path)
    assert again.code == 2
    assert "cluster-exists" in again.err


@pytest.mark.parametrize(
    ("file", "form", "text"),
    [
        ("spark-1.sh", "docker", "docker run"),
        ("spark-1.compose.yaml", "compose", "services:"),
        ("spark-1.container", "quadlet", "[Container]"),
    ],
)
def test_show_writes_a_file_for_each_node(
    run: Run, tmp_path: Path, file: str, form: str, text: str
) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(examples.cluster())
    nodes = tmp_path / "nodes"
    done = run("cluster", "show", "-f", str(path), "--to", form, "-o", str(nodes), "--json")
    assert text in (nodes / file).read_text()
    rows = json.loads(done.out)
    assert [(row["host"], row["rank"]) for row in rows] == [("spark1", 0), ("spark2", 1)]
    assert rows[1]["file"] == str(nodes / file)
    assert rows[1]["text"] == (nodes / file).read_text()


def test_the_image_of_a_cell_is_that_of_the_matrix_beside_the_file(
    run: Run, tmp_path: Path
) -> None:
    assert run("init", cwd=tmp_path).code == 0
    cell = matrix.load(tmp_path / "matrix.yaml").cells[0]
    path = tmp_path / "cluster.yaml"
    path.write_text(examples.cluster().replace("image: imagefactory/vllm:gb10", "cell: other"))
    assert "cluster-cell" in run("cluster", "show", cwd=tmp_path).err
    path.write_text(path.read_text().replace("cell: other", f"cell: {cell.name}"))
    assert cell.tag in run("cluster", "show", cwd=tmp_path).out


RECIPE = """\
summary: A model on two nodes
model: some/model
weights: bf16
vllm: ">=0.16"
nodes: [2]
user: "1000:1000"
options:
  tensor-parallel-size: 2
  distributed-executor-backend: ray
  max-model-len: 1000
env: {SOME: recipe, OTHER: recipe}
"""


def test_a_recipe_says_what_is_served_and_the_file_wins(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("init", cwd=tmp_path).code == 0
    cell = matrix.load(tmp_path / "matrix.yaml").cells[0]
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "two.yaml").write_text(RECIPE)
    text = f"""\
cell: {cell.name}
recipe: two
args: --max-model-len 2000
environment: {{SOME: own}}
cache: /srv/cache
nodes:
  - {{host: a, address: 10.0.0.1}}
  - {{host: b, address: 10.0.0.2}}
"""
    file = tmp_path / "cluster.yaml"
    file.write_text(text)
    # what checks recipes has tests of its own, with sources of vLLM
    monkeypatch.setattr(opening, "read", lambda _: None)
    found: list[Checked] = []
    monkeypatch.setattr(checking, "against_cells", lambda *_, **__: found)
    shown = run("cluster", "show", cwd=tmp_path)
    assert shown.code == 0, shown.err
    line = shown.out.splitlines()[-2]
    assert " serve some/model " in line
    assert "--max-model-len 1000 --max-model-len 2000 --distributed-executor-backend mp" in line
    assert "ray" not in line
    assert "--env SOME=own" in shown.out
    assert "--env OTHER=recipe" in shown.out

    assert "--user 1000:1000" in shown.out
    assert "--volume /srv/cache:/tmp/home-1000/.cache" in shown.out

    file.write_text(text.replace("cache: /srv/cache", "user: '7'"))
    refused = run("cluster", "show", cwd=tmp_path)
    assert (refused.code, "user 7 cannot write" in refused.err) == (2, True)
    file.write_text(text)
    problem = Problem(code="recipe-dead-option", what="--x is dead")
    found.append(Checked(recipe="two", target=cell.name, nodes=2, problems=(problem,)))
    assert "recipe-dead-option" in run("cluster", "show", cwd=tmp_path).err
    file.write_text(text[: text.index("  - {host: b")])
    alone = run("cluster", "show", cwd=tmp_path)
    assert (alone.code, "is for 2 nodes, not 1" in alone.err) == (2, True)


def test_tuned_kernels_beside_the_file_are_mounted_and_vllm_is_told(
    tmp_path: Path, run: Run
) -> None:
    (tmp_path / "cluster.yaml").write_text(examples.cluster())
    (tmp_path / "tunings").mkdir()
    (tmp_path / "tunings" / "E=8,N=256.json").write_text("{}")
    done = run("cluster", "show", cwd=tmp_path)
    volume = clusters.Tunings({"E=8,N=256.json": "{}"}).volume
    assert done.out.count(f"--volume {volume}:/tunings:ro") == 2
    assert done.out.count("--env VLLM_TUNED_CONFIG_FOLDER=/tunings") == 2
    assert f"docker run --rm -i -v {volume}:/tunings" in done.err
    unit = run("cluster", "show", "--to", "quadlet", cwd=tmp_path)
    assert f"podman volume import {volume} -" in unit.err
    elsewhere = tmp_path / "other folder"
    elsewhere.mkdir()
    data = run("cluster", "show", "--json", "--file", "../cluster.yaml", cwd=elsewhere)
    assert "otherwise: tar -C ../tunings -c . | ssh HOST docker run" in data.err
    named = run("cluster", "show", "--file", f"{elsewhere}/../cluster.yaml", cwd=tmp_path)
    assert f"tar -C '{elsewhere}/../tunings' -c ." in named.err


def test_a_file_of_tuned_kernels_that_is_no_text_is_named(tmp_path: Path, run: Run) -> None:
    (tmp_path / "cluster.yaml").write_text(examples.cluster())
    (tmp_path / "tunings").mkdir()
    (tmp_path / "tunings" / "E=8,N=256.json").write_bytes(b"\xff")
    done = run("cluster", "show", cwd=tmp_path)
    assert (done.code, "tunings/E=8,N=256.json cannot be read" in done.err) == (2, True)
    assert "fix: restore it, or remove it" in done.err  # tune --check needs a matrix


@pytest.mark.parametrize(
    "own", [{"gpus": False}, {"environment": (("VLLM_TUNED_CONFIG_FOLDER", "/mine"),)}]
)
def test_tuned_kernels_are_for_gpus_and_the_users_own_folder_wins(
    cluster: Cluster, own: dict[str, Any]
) -> None:
    tunings = clusters.Tunings({"E=8,N=256.json": "{}"})
    for member in clusters.members(replace(cluster, **own), "vllm:1", tunings):
        assert member.tunings is None
        assert "/tunings" not in [mount.target for mount in member.launch.mounts]
