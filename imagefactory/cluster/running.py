"""Starts the containers of a cluster on its nodes, watches them, and stops them.

What runs is known from the labels of containers alone: nothing is remembered on this machine, so
any machine that reaches the nodes can go on where another was interrupted.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from imagefactory.cluster import judging
from imagefactory.cluster.cluster import LABEL, Member
from imagefactory.cluster.looking import Answer, EngineOf, everywhere
from imagefactory.errors import CheckFailedError, FactoryError, Problem, SetupError
from imagefactory.launching import docker
from imagefactory.system import ui
from imagefactory.system.engine import Engine, ImageInfo, Service

#: The label with the digest of what a container was started with.
LAUNCH_LABEL = f"{LABEL}.launch"
#: Seconds between looks at containers that start, and between lines about it.
POLL, REPORT = 2.0, 15.0
#: Looks in a row that a node may miss.
MISSES = 5
#: Lines of a container's log that say why it ended.
LAST_LINES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A node and its container; None if there is none. ``error`` is why it is unknown."""

    member: Member
    service: Service | None = None
    error: FactoryError | None = None

    @property
    def state(self) -> str:
        """One word for it."""
        if self.error:
            return "unreachable"
        return self.service.state if self.service else "absent"

    @property
    def good(self) -> bool:
        """Whether it does what it should; only the head serves."""
        found = self.service
        if found is None or not found.running:
            return False
        return bool(self.member.rank) or found.health in ("healthy", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    """A node, its engine, and what is there: the image, and containers of the cluster."""

    member: Member
    engine: Engine
    image: ImageInfo | None
    ours: tuple[Service, ...]


def up(members: Sequence[Member], engine_of: EngineOf, *, timeout: float) -> list[Seen]:
    """Start what is not running as it is declared, and wait until the head serves.

    If one container has to be started, all are: a server cannot take a rank back. Raises SetupError
    if a node cannot be reached, and CheckFailedError if the nodes do not have one image, a
    container ends (the others are stopped then) or the head does not serve in time.
    """
    states = _ask(members, lambda member: _state(member, engine_of(member.node.host)))
    _check_images(states)
    launches = [_labelled(state) for state in states]
    if all(_runs(one, state) for one, state in zip(launches, states, strict=True)):
        ui.say("all containers run as they are declared")
    else:
        _ask(members, lambda member: _remove(states[member.rank], kill=True))
        ui.say(f"starting {', '.join(f'{m.launch.name} on {m.node.host}' for m in members)}")
        try:
            _ask(launches, lambda member: _start(states[member.rank], member))
        except FactoryError:
            _stop(states)
            raise
    return _wait(states, engine_of, timeout)


def status(members: Sequence[Member], engine_of: EngineOf) -> list[Seen]:
    """What runs on each node, also if some cannot be reached."""
    answers = everywhere(members, lambda member: _present(member, engine_of(member.node.host)))
    return [
        Seen(member=member, error=found)
        if isinstance(found, FactoryError)
        else Seen(member=member, service=found)
        for member, found in zip(members, answers, strict=True)
    ]


def logs(
    members: Sequence[Member], engine_of: EngineOf, *, last: int | None, since: str = ""
) -> list[str | FactoryError]:
    """The last lines of each node's container, or all since a time; empty if there is none."""

    def one(member: Member) -> str:
        engine = engine_of(member.node.host)
        return engine.service_log(member.launch.name, last=last, since=since)

    return everywhere(members, one)


def down(members: Sequence[Member], engine_of: EngineOf) -> list[int | FactoryError]:
    """Stop and remove the cluster's containers; returns how many there were on each node.

    Volumes stay. A node that cannot be reached does not keep the others from being cleared.
    """

    def one(member: Member) -> int:
        engine = engine_of(member.node.host)
        state = _State(member=member, engine=engine, image=None, ours=_ours(member, engine))
        return _remove(state, kill=False)

    return everywhere(members, one)


def raise_errors(answers: Sequence[object]) -> None:
    """Raise the errors among the answers of nodes as one, if there are any."""
    errors = [one for one in answers if isinstance(one, FactoryError)]
    if errors:
        kind = SetupError if any(isinstance(e, SetupError) for e in errors) else CheckFailedError
        raise kind(problem for error in errors for problem in error.problems)


def _ask(members: Sequence[Member], ask: Callable[[Member], Answer]) -> list[Answer]:
    """The answers of all nodes. Raises all their errors as one."""
    answers = everywhere(members, ask)
    raise_errors(answers)
    return [one for one in answers if not isinstance(one, FactoryError)]


def _state(member: Member, engine: Engine) -> _State:
    ref = member.launch.image
    image = engine.find_images([ref]).get(ref)
    return _State(member=member, engine=engine, image=image, ours=_ours(member, engine))


def _ours(member: Member, engine: Engine) -> tuple[Service, ...]:
    """The cluster's containers on a node, those of former ranks too."""
    name = member.launch.labels[LABEL]
    found = engine.services(f"{LABEL}={name}")
    # an image can set labels of its containers, but not their names
    return tuple(one for one in found if one.name.startswith(f"{name}-"))


def _check_images(states: Sequence[_State]) -> None:
    first = next((state.image for state in states if state.image), None)
    problems = []
    for state in states:
        host, ref = state.member.node.host, state.member.launch.image
        if state.image is None:
            what = f"{host}: the engine has no image {ref}"
        elif first and judging.content(state.image) != judging.content(first):
            what = f"{host}: {ref} has another content than on {states[0].member.node.host}"
        else:
            continue
        fix = "imagefactory cluster check compares the nodes"
        problems.append(Problem(code="cluster-image", what=what, fix=fix))
    if problems:
        raise CheckFailedError(problems)


def _labelled(state: _State) -> Member:
    """The member with a label that changes with anything that its container is started with."""
    image = state.image.digest if state.image else ""
    text = json.dumps([docker.arguments(state.member.launch), image])
    labels = {LAUNCH_LABEL: hashlib.sha256(text.encode()).hexdigest()[:16]}
    launch = state.member.launch
    return replace(state.member, launch=replace(launch, labels={**launch.labels, **labels}))


def _runs(launched: Member, state: _State) -> bool:
    """Whether the node runs this container, and no other of the cluster."""
    wanted = launched.launch.labels[LAUNCH_LABEL]
    return [one.labels.get(LAUNCH_LABEL) for one in state.ours if one.running] == [wanted]


def _present(member: Member, engine: Engine) -> Service | None:
    """The node's container, unless another one has its name."""
    found = engine.service(member.launch.name)
    ours = found and found.labels.get(LABEL) == member.launch.labels[LABEL]
    return found if ours else None


def _start(state: _State, member: Member) -> None:
    launch, tunings = member.launch, member.tunings
    try:
        if tunings:
            state.engine.fill_volume(tunings.volume, launch.image, tunings.files)
        state.engine.start_service(docker.arguments(launch))
    except CheckFailedError as error:
        (problem, *_) = error.problems
        if problem.code == "container-name" and _runs_now(member, state.engine):
            return  # another `up` has started it in this moment
        what = f"{member.node.host}: {problem.what}"
        raise CheckFailedError(replace(problem, what=what)) from None


def _runs_now(launched: Member, engine: Engine) -> bool:
    found = engine.service(launched.launch.name)
    wanted = launched.launch.labels[LAUNCH_LABEL]
    return found is not None and found.labels.get(LAUNCH_LABEL) == wanted


def _remove(state: _State, *, kill: bool) -> int:
    for one in state.ours:
        if one.running and not kill:
            state.engine.stop_service(one.id)
        state.engine.remove_service(one.id)
    return len(state.ours)


def _stop(states: Sequence[_State]) -> None:
    """Stop what still runs, as far as possible; containers are kept for their logs."""

    def one(member: Member) -> None:
        engine = states[member.rank].engine
        found = _present(member, engine)
        if found and found.state in ("running", "restarting"):
            engine.stop_service(found.id)

    everywhere([state.member for state in states], one)


def _wait(states: Sequence[_State], engine_of: EngineOf, timeout: float) -> list[Seen]:
    """Wait until the head is healthy."""

    def look(member: Member) -> Service | None:
        # whether a node that was away is back is found out sooner without Docker's client
        engine = engine_of(member.node.host) if missed else states[member.rank].engine
        return _present(member, engine)

    members = [state.member for state in states]
    head, began, reported = states[0], time.monotonic(), time.monotonic()
    missed = 0
    while True:
        answers = everywhere(members, look)
        errors = [one for one in answers if isinstance(one, FactoryError)]
        missed = missed + 1 if errors else 0
        if missed > MISSES:
            raise errors[0]
        pairs = zip(members, answers, strict=True)
        seen = [Seen(member=m, service=a) for m, a in pairs if not isinstance(a, FactoryError)]
        ended = [one for one in seen if not (one.service and one.service.running)]
        if ended:
            raise _ended(states, ended)
        if not errors and all(one.good for one in seen):
            if seen[0].service and not seen[0].service.health:
                ui.warn(
                    f"{head.member.launch.image} has no health check: whether it serves is open"
                )
            return seen
        now = time.monotonic()
        if now - began > timeout:
            raise _late(head, timeout)
        if now - reported > REPORT:
            reported = now
            last = f"{head.member.node.host}: {_last_lines(head, 1).strip()}"
            ui.say(f"{now - began:.0f} s, {errors[0].problems[0].what if errors else last}")
        time.sleep(POLL)


def _ended(states: Sequence[_State], ended: Sequence[Seen]) -> FactoryError:
    """The error for containers that ended, the first one first; the others are stopped."""
    problems = []
    for one in sorted(ended, key=lambda one: one.service.since if one.service else ""):
        state, found = states[one.member.rank], one.service
        where = f"{one.member.node.host}: {one.member.launch.name} ({one.member.role})"
        if found is None:
            what, detail = f"{where} was removed", ""
        else:
            memory = ", out of memory" if found.out_of_memory else ""
            what = f"{where} ended with exit code {found.code}{memory}"
            detail = _last_lines(state)
        fix = "the others were stopped; imagefactory cluster logs shows more"
        problems.append(Problem(code="cluster-node-ended", what=what, fix=fix, detail=detail))
    _stop(states)
    return CheckFailedError(problems)


def _late(head: _State, timeout: float) -> FactoryError:
    what = f"{head.member.node.host} does not serve after {timeout:.0f} s; all containers run on"
    fix = "wait longer: imagefactory cluster up --timeout; or imagefactory cluster down"
    code, detail = "cluster-timeout", _last_lines(head)
    return CheckFailedError(Problem(code=code, what=what, fix=fix, detail=detail))


def _last_lines(state: _State, number: int = LAST_LINES) -> str:
    try:
        return state.engine.service_log(state.member.launch.name, last=number).rstrip()
    except SetupError as error:
        return f"its log cannot be read: {error.problems[0].what}"
