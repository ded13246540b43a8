"""The forms that a launch is written in say the same thing, and are what their readers accept."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from typing import Any

import jsonschema
import pytest
import yaml
from support import ROOT

from imagefactory.errors import InputError
from imagefactory.launching import compose, docker, kubernetes, quadlet
from imagefactory.launching.launching import CACHE, RDMA_DEVICES, Launch, Mount, Port

LEAST = Launch(name="vllm", image="vllm:1", command=(), gpus=False)
#: What readers of YAML, systemd, Compose and Kubernetes could each take for something else.
ODD = ('{"a": "b"}', "1e6", "on", "100% $HOME ${PATH} $(date)", "a\\b", "it's", "two\nlines", "#")
FULL = Launch(
    name="vllm_head",
    image="r.local/vllm@sha256:" + "a" * 64,
    command=("serve", "Qwen/Qwen3-0.6B", *ODD),
    environment={"PLAIN": "1", "ODD": "50% of $HOME ${PATH} $(date)", "EMPTY": ""},
    passed_on=("HF_TOKEN",),
    mounts=(
        Mount(source="/srv/models", target="/models", read_only=True),
        Mount(source="vllm-cache", target=CACHE),
    ),
    ports=(Port(host=8001),),
    devices=(RDMA_DEVICES,),
    unlimited_memlock=True,
    memory_bytes=100 << 30,
    restart=True,
    labels={"io.imagefactory.cluster": "two words"},
)
ON_HOST_NETWORK = replace(FULL, ports=(), host_network=True, user="1000:100")
FILES = {
    "E=512,N=512,device_name=NVIDIA_GB10,dtype=fp8_w8a8,block_shape=[128,128].json": '{"1": {}}\n',
    "E=8,N=256,device_name=NVIDIA_GB10.json": "{}",
}
TUNED = replace(
    FULL,
    mounts=(
        *FULL.mounts,
        Mount(source="/mine/tunings", target="/tunings", read_only=True, files=FILES),
    ),
)
LAUNCHES = LEAST, FULL, ON_HOST_NETWORK, TUNED


def schema(name: str) -> jsonschema.Draft7Validator:
    path = ROOT / "tests" / "data" / "schemas" / f"{name}.json"
    return jsonschema.Draft7Validator(json.loads(path.read_text()))


def service(launch: Launch) -> Any:
    return yaml.safe_load(compose.text(launch))["services"][launch.name]


def container(launch: Launch) -> Any:
    return pod(launch)["containers"][0]


def pod(launch: Launch) -> Any:
    found = yaml.safe_load_all(kubernetes.text(launch))
    (deployment,) = [one for one in found if one["kind"] == "Deployment"]
    return deployment["spec"]["template"]["spec"]


def unit(launch: Launch) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in quadlet.text(launch).splitlines():
        key, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(key, []).append(value)
    return found


def as_systemd_reads(words: str) -> list[str]:
    split = re.findall(r'"((?:[^"\\]|\\.)*)"|(\S+)', words)
    plain = [quoted.replace('\\"', '"').replace("\\n", "\n") or bare for quoted, bare in split]
    return [w.replace("\\\\", "\\").replace("$$", "$").replace("%%", "%") for w in plain]


def test_compose_files_and_kubernetes_objects_are_what_the_published_schemas_allow() -> None:
    of_compose, of_kubernetes = schema("compose-spec"), schema("kubernetes")
    for launch in LAUNCHES:
        of_compose.validate(yaml.safe_load(compose.text(launch)))
        for found in yaml.safe_load_all(kubernetes.text(launch)):
            of_kubernetes.validate(found)
    wrong = yaml.safe_load(compose.text(FULL).replace("shm_size", "shmsize"))
    with pytest.raises(jsonschema.ValidationError):
        of_compose.validate(wrong)
    for right, typo in (("hostPath", "hostpath"), ("configMap:", "configmap:"), ("data:", "file:")):
        found = yaml.safe_load_all(kubernetes.text(TUNED).replace(right, typo))
        assert not all(map(of_kubernetes.is_valid, found))


def test_every_form_passes_the_command_and_the_environment_through_unchanged() -> None:
    words = list(FULL.command)
    assert docker.arguments(FULL)[-len(words) :] == words
    assert shlex.split(docker.text(FULL).replace(" \\\n", ""))[2:] == docker.arguments(FULL)
    assert [word.replace("$$", "$") for word in service(FULL)["command"]] == words
    assert [word.replace("$$(", "$(") for word in container(FULL)["args"]] == words
    assert as_systemd_reads(unit(FULL)["Exec"][0]) == words

    given = [f"{name}={value}" for name, value in FULL.environment.items()]
    assert [word for word in docker.arguments(FULL) if word in given] == given
    of_compose = service(FULL)["environment"].items()
    assert [f"{k}={(v or '').replace('$$', '$')}" for k, v in of_compose][:-1] == given
    rows = container(FULL)["env"][:-1]
    assert [f"{r['name']}={r['value'].replace('$$(', '$(')}" for r in rows] == given
    assert [as_systemd_reads(line)[0] for line in unit(FULL)["Environment"]] == given


def test_text_that_yaml_1_2_reads_as_a_number_is_quoted() -> None:
    assert '"1e6"' in compose.text(FULL)


def test_no_form_gives_more_privileges_than_the_launch_needs() -> None:
    for launch in LAUNCHES:
        words = " ".join(docker.arguments(launch))
        assert "--cap-drop ALL --security-opt no-new-privileges" in words
        assert service(launch)["cap_drop"] == ["ALL"]
        assert service(launch)["security_opt"] == ["no-new-privileges:true"]
        assert unit(launch)["DropCapability"] == ["all"]
        assert unit(launch)["NoNewPrivileges"] == ["true"]
        context = container(launch)["securityContext"]
        assert context["capabilities"]["drop"] == ["ALL"]
        assert context["allowPrivilegeEscalation"] is False
        for form in (docker, compose, quadlet, kubernetes):
            assert "privileged" not in form.text(launch).replace("no-new-privileges", "")
    assert "add" not in container(LEAST)["securityContext"]["capabilities"]


def test_a_user_is_the_same_in_every_form_and_root_where_none_is_named() -> None:
    mine = replace(FULL, user="1000:100")
    assert "--user 1000:100" in " ".join(docker.arguments(mine))
    assert service(mine)["user"] == "1000:100"
    assert (unit(mine)["User"], unit(mine)["Group"]) == (["1000"], ["100"])
    assert pod(mine)["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 1000,
        "runAsGroup": 100,
        "fsGroup": 100,
    }
    assert "Group" not in unit(replace(FULL, user="1000"))
    assert "--user" not in docker.arguments(FULL)
    assert "user" not in service(FULL)
    assert "User" not in unit(FULL)
    assert "securityContext" not in pod(FULL)


def test_values_that_are_passed_on_are_in_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    for form in (docker, compose, quadlet, kubernetes):
        assert "HF_TOKEN" in form.text(FULL)
        assert "hf_secret" not in form.text(FULL)
    assert service(FULL)["environment"]["HF_TOKEN"] is None
    assert unit(FULL)["Secret"] == ["HF_TOKEN,type=env,target=HF_TOKEN"]
    secret = container(FULL)["env"][-1]["valueFrom"]["secretKeyRef"]
    assert (secret["name"], secret["key"]) == ("vllm-head-environment", "HF_TOKEN")
    assert "secret generic vllm-head-environment --from-literal=HF_TOKEN=" in kubernetes.text(FULL)


def test_gpus_rdma_and_memory_are_asked_for_in_the_words_of_each_form() -> None:
    words = " ".join(docker.arguments(FULL))
    for option in ("--gpus all", "--device /dev/infiniband", "--ulimit memlock=-1:-1"):
        assert option in words
    assert f"--memory {100 << 30} --memory-swap {100 << 30}" in words
    of_compose = service(FULL)
    reserved = of_compose["deploy"]["resources"]["reservations"]["devices"]
    assert reserved == [{"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}]
    assert of_compose["devices"] == ["/dev/infiniband:/dev/infiniband"]
    assert of_compose["ulimits"]["memlock"] == {"soft": -1, "hard": -1}
    assert of_compose["mem_limit"] == of_compose["memswap_limit"] == 100 << 30
    assert unit(FULL)["AddDevice"] == ["nvidia.com/gpu=all", "/dev/infiniband"]
    assert unit(FULL)["Ulimit"] == ["memlock=-1:-1"]
    limits = container(FULL)["resources"]["limits"]
    assert limits.pop("memory") == str(100 << 30)
    assert limits == {"nvidia.com/gpu": "1", "rdma/rdma_shared_device_a": "1"}
    assert container(FULL)["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]
    for form in (docker, compose, quadlet, kubernetes):
        text = form.text(LEAST)
        assert not {w for w in ("nvidia", "infiniband", "memlock", "memory:") if w in text}


def test_the_shared_memory_has_its_size_in_every_form() -> None:
    size = FULL.shm_bytes
    assert f"--shm-size {size}" in " ".join(docker.arguments(FULL))
    assert service(FULL)["shm_size"] == size
    assert unit(FULL)["ShmSize"] == [str(size)]
    shm = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": str(size)}}
    assert pod(FULL)["volumes"][0] == shm


def test_folders_and_named_volumes_are_mounted_in_every_form() -> None:
    words = " ".join(docker.arguments(FULL))
    assert "--volume /srv/models:/models:ro --volume vllm-cache:/root/.cache" in words
    bind, volume = service(FULL)["volumes"]
    assert (bind["type"], bind["source"], bind["read_only"]) == ("bind", "/srv/models", True)
    assert (volume["type"], volume["source"]) == ("volume", "vllm-cache")
    shared = yaml.safe_load(compose.text(FULL))["volumes"]
    assert shared == {"vllm-cache": {"name": "vllm-cache"}}
    assert unit(FULL)["Volume"] == ["/srv/models:/models:ro", "vllm-cache:/root/.cache"]
    of_host, claimed = pod(FULL)["volumes"][1:]
    assert of_host["hostPath"]["path"] == "/srv/models"
    assert claimed["persistentVolumeClaim"]["claimName"] == "vllm-cache"
    paths = [(m["mountPath"], m.get("readOnly")) for m in container(FULL)["volumeMounts"]]
    assert paths == [("/dev/shm", None), ("/models", True), ("/root/.cache", None)]


def test_a_folder_that_is_only_read_has_to_exist_where_it_is_mounted() -> None:
    bind, volume = service(FULL)["volumes"]
    assert bind["bind"] == {"create_host_path": False}
    assert "bind" not in volume
    assert pod(FULL)["volumes"][1]["hostPath"] == {"path": "/srv/models", "type": "Directory"}
    written = replace(FULL, mounts=(Mount(source="/srv/cache", target=CACHE),))
    assert "bind" not in service(written)["volumes"][0]
    assert pod(written)["volumes"][1]["hostPath"] == {"path": "/srv/cache"}
    kept = replace(FULL, mounts=(Mount(source="tuned", target="/tunings", read_only=True),))
    assert "bind" not in service(kept)["volumes"][0]


def test_kubernetes_brings_files_along_under_keys_that_it_allows() -> None:
    config_map, deployment = list(yaml.safe_load_all(kubernetes.text(TUNED)))[:2]
    data = config_map["data"]
    assert all(re.fullmatch(r"[-._a-zA-Z0-9]+", key) for key in data)
    found = pod(TUNED)["volumes"][3]["configMap"]
    assert {item["path"]: data[item["key"]] for item in found["items"]} == FILES
    assert found["name"] == config_map["metadata"]["name"]
    assert found["name"].startswith("vllm-head-tunings-")
    assert container(TUNED)["volumeMounts"][3] == {
        "name": "mount-2",
        "mountPath": "/tunings",
        "readOnly": True,
    }
    assert deployment["kind"] == "Deployment"


def holding(files: dict[str, str]) -> Launch:
    return replace(FULL, mounts=(Mount(source="/t", target="/t", read_only=True, files=files),))


def test_kubernetes_starts_a_pod_again_when_its_files_change() -> None:
    names = {
        pod(holding(files))["volumes"][1]["configMap"]["name"]
        for files in ({"a": "1"}, {"a": "2"}, {"b": "1"}, {"a": "1"})
    }
    assert len(names) == 3


def test_files_that_no_config_map_can_hold_are_refused() -> None:
    apply = "kubectl apply --server-side"
    assert apply not in kubernetes.text(holding({"a": "x" * 200_000}))
    assert apply in kubernetes.text(holding({"a": "x" * 200_000, "b": "x" * 200_000}))
    kubernetes.text(holding({"a": "é" * (1 << 19)}))
    with pytest.raises(InputError, match="have 1048578 bytes"):
        kubernetes.text(holding({"a": "é" * (1 << 19), "b": "é"}))


def test_ports_are_published_and_a_launch_on_the_hosts_network_has_none() -> None:
    assert "--publish 127.0.0.1:8001:8000" in " ".join(docker.arguments(FULL))
    assert service(FULL)["ports"] == ["127.0.0.1:8001:8000"]
    assert unit(FULL)["PublishPort"] == ["127.0.0.1:8001:8000"]
    service_of = list(yaml.safe_load_all(kubernetes.text(FULL)))[1]
    port = {"name": "port-8001", "port": 8001, "targetPort": 8000}
    assert service_of["spec"]["ports"] == [port]
    assert container(FULL)["readinessProbe"]["httpGet"] == {"path": "/health", "port": 8000}

    assert "--network host" in " ".join(docker.arguments(ON_HOST_NETWORK))
    assert service(ON_HOST_NETWORK)["network_mode"] == "host"
    assert unit(ON_HOST_NETWORK)["Network"] == ["host"]
    assert pod(ON_HOST_NETWORK)["hostNetwork"] is True
    assert len(list(yaml.safe_load_all(kubernetes.text(ON_HOST_NETWORK)))) == 1


def test_a_launch_starts_again_only_if_it_says_so() -> None:
    assert "--restart unless-stopped" in " ".join(docker.arguments(FULL))
    assert service(FULL)["restart"] == "unless-stopped"
    assert unit(FULL)["Restart"] == ["always"]
    assert unit(FULL)["WantedBy"] == ["multi-user.target default.target"]
    assert "--restart" not in docker.arguments(LEAST)
    assert service(LEAST)["restart"] == "no"
    assert unit(LEAST)["Restart"] == ["no"]
    assert "WantedBy" not in unit(LEAST)


def test_requests_may_be_finished_in_every_form() -> None:
    patient = replace(FULL, stop_seconds=90)
    assert "--stop-timeout 90" in " ".join(docker.arguments(patient))
    assert service(patient)["stop_grace_period"] == "90s"
    assert "--stop-timeout=90" in unit(patient)["PodmanArgs"]
    assert pod(patient)["terminationGracePeriodSeconds"] == 90


def test_labels_are_found_again_in_every_form() -> None:
    label = "io.imagefactory.cluster"
    assert f"{label}=two words" in docker.arguments(FULL)
    assert service(FULL)["labels"] == {label: "two words"}
    assert unit(FULL)["Label"] == [f'"{label}=two words"']
    deployment = next(yaml.safe_load_all(kubernetes.text(FULL)))
    assert deployment["spec"]["template"]["metadata"]["annotations"] == {label: "two words"}


def test_names_in_kubernetes_are_labels_of_dns() -> None:
    deployment = next(yaml.safe_load_all(kubernetes.text(FULL)))
    assert deployment["metadata"]["name"] == "vllm-head"


def test_a_quadlet_refuses_an_empty_argument_which_podman_would_drop() -> None:
    with pytest.raises(InputError, match="quadlet-empty-argument"):
        quadlet.text(replace(LEAST, command=("--option", "")))
