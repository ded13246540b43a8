"""Starting a cluster, watching it and stopping it; the engines of the nodes are stand-ins."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support.program import Run, run
from support.two_nodes import IMAGE, REF, Node, Two, call, container, ended, two

from imagefactory.cluster import cluster as clusters
from imagefactory.cluster import declaration
from imagefactory.errors import CheckFailedError, SetupError, fail
from imagefactory.system.engine import Engine, ImageInfo, Service

__all__ = ["call", "run", "two"]


def test_up_starts_all_containers_and_waits_until_the_head_is_healthy(
    two: Two, capsys: pytest.CaptureFixture[str]
) -> None:
    healths = iter(["starting", "unhealthy", "healthy"])
    two.head.later = lambda one: replace(one, health=next(healths))
    two.worker.later = lambda one: one
    seen = two.up()
    assert [one.good for one in seen] == [True, True]
    assert next(healths, None) is None
    assert two.done() == [["start spark-0"], ["start spark-1"]]
    assert "spark1: ValueError: planted" in capsys.readouterr().err


def test_up_leaves_alone_what_runs_as_declared_and_restarts_all_that_does_not(two: Two) -> None:
    two.up()
    two.done()
    two.up()
    assert two.done() == [[], []]

    two.worker.found["spark-1"] = ended(1)(two.worker.found["spark-1"])
    two.up()
    both = [["remove spark-0", "start spark-0"], ["remove spark-1", "start spark-1"]]
    assert two.done() == both

    two.members = [
        replace(one, launch=replace(one.launch, memory_bytes=1 << 30)) for one in two.members
    ]
    two.up()
    assert two.done() == both

    for node in two.nodes.values():  # the tag has moved
        node.image = replace(IMAGE, digest="sha256:b")
    two.up()
    assert two.done() == both


def test_a_former_rank_is_removed_and_containers_of_others_stay(two: Two) -> None:
    label = {"io.imagefactory.cluster": "spark"}
    for one in (container("spark-7", label), container("mine", label), container("spark-8", {})):
        two.worker.found[one.name] = one
    two.up()
    assert two.done()[1] == ["remove spark-7", "start spark-1"]
    assert {*two.worker.found} == {"spark-1", "mine", "spark-8"}


@pytest.mark.parametrize(
    ("later", "said"),
    [
        (ended(3), "spark2: spark-1 (worker) ended with exit code 3"),
        (ended(137, killed=True), "exit code 137, out of memory"),
        (lambda _: None, "spark2: spark-1 (worker) was removed"),
    ],
)
def test_a_worker_that_ends_is_shown_with_its_last_lines_and_the_head_is_stopped(
    two: Two, later: Callable[[Service], Service | None], said: str
) -> None:
    two.head.later = lambda one: one
    two.worker.later = later
    with pytest.raises(CheckFailedError) as caught:
        two.up()
    (problem,) = caught.value.problems
    assert said in problem.what
    assert ("planted" in problem.detail) == ("removed" not in said)
    assert two.done()[0] == ["start spark-0", "stop spark-0"]


def test_of_two_containers_that_end_the_first_is_shown_first(two: Two) -> None:
    two.head.later, two.worker.later = ended(1, "2026-11-22T12"), ended(3, "2026-11-22T11")
    with pytest.raises(CheckFailedError) as caught:
        two.up()
    assert ["spark-1" in one.what for one in caught.value.problems] == [True, False]


def test_a_head_that_takes_too_long_goes_on_loading(two: Two) -> None:
    two.head.later = lambda one: one
    with pytest.raises(CheckFailedError, match="does not serve after 0 s"):
        two.up(timeout=0)
    assert two.done() == [["start spark-0"], ["start spark-1"]]


def test_two_that_start_it_at_once_both_wait_for_it(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second sees nothing, and then finds what the first has started meanwhile."""
    two.up()
    two.done()
    monkeypatch.setattr(Node, "services", lambda *_: [])
    assert two.up()[0].good
    assert two.done() == [[], []]
    two.members = [
        replace(one, launch=replace(one.launch, memory_bytes=1 << 30)) for one in two.members
    ]
    with pytest.raises(CheckFailedError, match="the name is taken"):
        two.up()


def test_an_image_without_a_health_check_is_not_waited_for(
    two: Two, capsys: pytest.CaptureFixture[str]
) -> None:
    two.head.later = lambda one: replace(one, health="")
    two.up()
    assert "has no health check" in capsys.readouterr().err


def test_a_container_that_does_not_start_stops_the_others(two: Two) -> None:
    two.worker.found["spark-1"] = container("spark-1", {})
    with pytest.raises(CheckFailedError, match="spark2: docker: the name is taken"):
        two.up()
    assert two.done() == [["start spark-0", "stop spark-0"], []]


def test_a_node_may_be_away_for_a_moment_but_not_for_long(two: Two) -> None:
    looks = iter(range(100))

    def away(one: Service) -> Service:
        if 1 <= next(looks) < gone:
            raise fail(SetupError, "engine-failed", "docker: No route to host")
        return replace(one, health="healthy")

    two.worker.later = away
    two.head.later = lambda one: one if next(looks) < 4 else replace(one, health="healthy")
    gone = 4
    assert two.up()[0].good
    two.done()
    two.head.later = lambda one: replace(one, health="starting")
    gone = 1000
    with pytest.raises(SetupError, match="spark2: docker: No route to host"):
        two.up()


def test_a_head_may_be_away_for_a_moment_although_it_is_asked_for_its_log(
    two: Two, capsys: pytest.CaptureFixture[str]
) -> None:
    looks = iter(range(100))

    def away(one: Service) -> Service:
        if (look := next(looks)) < 3:
            two.head.writes_no_log = True
            raise fail(SetupError, "engine-failed", "docker: No route to host")
        two.head.writes_no_log = look < 5
        return one if look < 7 else replace(one, health="healthy")

    two.head.later = away
    assert two.up()[0].good
    said = capsys.readouterr().err
    assert "spark1: docker: No route to host" in said
    assert "its log cannot be read: docker: No route to host" in said
    assert "spark1: ValueError: planted" in said


@pytest.mark.parametrize(
    ("image", "said"),
    [
        (None, "spark2: the engine has no image"),
        (
            replace(IMAGE, layers=("sha256:2",)),
            "spark2: imagefactory/vllm:gb10 has another content",
        ),
    ],
)
def test_nothing_is_started_unless_all_nodes_have_one_image(
    two: Two, image: ImageInfo | None, said: str
) -> None:
    two.worker.image = image
    with pytest.raises(CheckFailedError, match=said):
        two.up()
    assert two.done() == [[], []]


def test_nothing_is_started_unless_all_nodes_answer(two: Two) -> None:
    two.head.off = two.worker.off = True
    with pytest.raises(SetupError) as caught:
        two.up()
    assert [one.code for one in caught.value.problems] == ["node-unreachable"] * 2
    assert two.done() == [[], []]


def test_nodes_get_tuned_kernels_before_their_containers_start(two: Two, tmp_path: Path) -> None:
    declared = declaration.load(tmp_path / "cluster.yaml")
    tunings = clusters.Tunings({"E=8,N=256.json": "{}"})
    two.members = clusters.members(declared, REF, tunings)
    two.up()
    assert two.done()[1] == [f"fill {tunings.volume} with E=8,N=256.json", "start spark-1"]
    two.up()
    assert two.done() == [[], []]
    two.members = clusters.members(declared, REF, clusters.Tunings({"E=8,N=256.json": "[]"}))
    two.up()
    assert two.done()[0][-1] == "start spark-0"


def test_a_node_that_was_away_is_reached_first_when_it_is_looked_at_again(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    two.up()
    two.done()
    asked: list[str] = []
    looks = iter([fail(SetupError, "engine-failed", "docker: timed out"), None])

    def of(host: str) -> Engine:
        asked.append(host)
        return two.nodes[host]

    def later(one: Service) -> Service:
        if error := next(looks, None):
            raise error
        return one

    monkeypatch.setattr(two, "of", of)
    two.worker.later = later
    assert two.up()[1].good
    assert sorted(asked) == ["spark1"] * 2 + ["spark2"] * 2


def test_status_says_what_runs_and_exits_with_what_is_wrong(two: Two, call: Run) -> None:
    two.up()
    good = call("status", "--json")
    assert good.code == 0
    assert json.loads(good.out)["nodes"][1] == {
        "host": "spark2",
        "container": "spark-1",
        "role": "worker",
        "state": "running",
        "health": "healthy",
        "since": "2026-11-22 10:00:00",
    }
    two.head.later = lambda one: replace(one, health="unhealthy")
    assert call("status").code == 1
    two.worker.later = ended(3)
    assert "exited 3" in call("status").out
    two.head.off = True
    off = call("status")
    assert off.code == 3
    assert "unreachable" in off.out
    assert "exited 3" in off.out


def test_logs_are_those_of_all_nodes_or_of_one(two: Two, call: Run) -> None:
    two.up()
    assert call("logs").out.splitlines() == [
        "spark1 | line 1 of spark-0",
        "spark1 | ValueError: planted",
        "spark2 | line 1 of spark-1",
        "spark2 | ValueError: planted",
    ]
    assert call("logs", "--node", "spark2", "--last", "1").out == "spark2 | ValueError: planted\n"
    assert call("logs", "--node", "spark9").code == 2
    two.head.off = True
    off = call("logs")
    assert (off.code, "spark2 | line 1" in off.out) == (3, True)


TIMES = "10m", "1h30m", "0.5s", "1764000000.5", "2026-01-31", "2026-01-31T10:00:00.123456789+01:00"
NO_TIMES = "1d", "3 hours", "-5s", "2026-13-01", "10:00", "1_0", "2026-W05", "2026-01-31 10:00"


@pytest.mark.parametrize("time", TIMES)
def test_logs_since_a_time_are_all_lines_unless_a_number_is_said(
    two: Two, call: Run, time: str
) -> None:
    two.up()
    lines = ["spark2 | line 1 of spark-1", "spark2 | ValueError: planted", f"spark2 | since {time}"]
    since = ("logs", "--node", "spark2", "--since", time)
    assert call(*since).out.splitlines() == lines
    assert call(*since, "-n", "1").out.splitlines() == lines[-1:]


@pytest.mark.parametrize("time", NO_TIMES)
def test_a_time_that_docker_would_refuse_is_refused_before_nodes_are_asked(
    two: Two, call: Run, time: str
) -> None:
    two.head.off = two.worker.off = True
    done = call("logs", f"--since={time}")
    assert (done.code, f"error: {time!r} is no time [cluster-since]" in done.err) == (2, True)
    assert "24h" in done.err


def test_down_removes_what_it_reaches_after_it_had_time_to_end(two: Two, call: Run) -> None:
    two.up()
    two.done()
    two.worker.off = True
    off = call("down", "--json")
    assert off.code == 3
    assert json.loads(off.out)["removed"] == {"spark1": 1}
    assert two.done() == [["stop spark-0", "remove spark-0"], []]
    two.worker.off = False
    assert call("down").out == "spark1: -\nspark2: 1 removed\n"


def test_up_says_where_the_model_is_served_and_which_variables_are_missing(
    two: Two, call: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    done = call("up")
    assert done.code == 0
    assert "spark1 serves at http://192.168.100.10:8000/v1" in done.err
    assert "HF_TOKEN is not set here" in done.err
