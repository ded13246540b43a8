"""What may go to make room: ours, and only what nobody needs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from imagefactory.planning.cell_plan import LABEL
from imagefactory.system.engine import CacheRecord, ImageInfo
from imagefactory.system.engine.cache_records import parse
from imagefactory.upkeep import prune
from imagefactory.upkeep.prune import Pruning

REPOSITORY = "imagefactory/vllm"
WANTED = {f"{REPOSITORY}:gb10": "new", f"{REPOSITORY}:cpu": "new"}


def image(ref: str, *, key: str | None = "new", digest: str = "") -> ImageInfo:
    labels = {f"{LABEL}.build-key": key} if key else {}
    return ImageInfo(
        ref=ref,
        digest=digest or f"sha256:{ref}",
        layers=(),
        platform="linux/arm64",
        labels=labels,
        env={},
        size=7,
    )


def judged(
    *found: ImageInfo,
    used: tuple[str, ...] = (),
    verified: tuple[str, ...] = (),
    everything: bool = False,
) -> Pruning:
    return prune.images(
        {one.ref: one for one in found},
        WANTED,
        repository=REPOSITORY,
        used=used,
        verified=verified,
        everything=everything,
    )


def test_an_image_of_older_inputs_or_of_no_cell_goes_and_the_present_one_stays() -> None:
    plan = judged(
        image(f"{REPOSITORY}:gb10", key="old"),
        image(f"{REPOSITORY}:gone"),
        image(f"{REPOSITORY}:cpu"),
    )
    assert {item.name: item.why for item in plan.items} == {
        f"{REPOSITORY}:gb10": "made from older inputs than the matrix has now",
        f"{REPOSITORY}:gone": "no cell of the matrix has this name",
    }
    assert [item.name for item in plan.kept] == [f"{REPOSITORY}:cpu"]


def test_with_all_the_present_ones_go_too() -> None:
    assert [item.name for item in judged(image(f"{REPOSITORY}:cpu"), everything=True).items] == [
        f"{REPOSITORY}:cpu"
    ]


def test_an_image_that_a_container_uses_stays_and_says_so() -> None:
    old = image(f"{REPOSITORY}:gb10", key="old", digest="sha256:1")
    plan = judged(old, used=("sha256:1",), everything=True)
    assert plan.items == ()
    assert plan.kept[0].why == "a container uses it"


def test_an_image_made_from_ours_by_somebody_else_inherits_the_label_and_is_not_looked_at() -> None:
    assert judged(image("mine/prod:1", key="old"), everything=True) == Pruning(items=(), kept=())


def test_a_name_in_our_repository_without_our_label_is_not_looked_at() -> None:
    assert judged(image(f"{REPOSITORY}:byhand", key=None), everything=True) == Pruning(
        items=(), kept=()
    )


def test_a_superseded_image_that_was_verified_says_so_and_a_second_name_takes_no_room() -> None:
    names = (f"{REPOSITORY}:a", f"{REPOSITORY}:b")
    plan = judged(*(image(name, digest="sha256:1") for name in names), verified=("sha256:1",))
    assert [item.size for item in plan.items] == [7, 0]
    assert all("verified" in item.why for item in plan.items)


REFS = st.from_regex(r"\A[a-z]{1,6}/[a-z]{1,4}:[a-z0-9]{1,5}\Z") | st.sampled_from(
    [*WANTED, f"{REPOSITORY}x:gb10"]
)


@given(
    st.lists(st.tuples(REFS, st.none() | st.sampled_from(["new", "old"])), max_size=8),
    st.booleans(),
)
def test_whatever_there_is_only_labelled_names_of_the_repository_can_go(
    found: list[tuple[str, str | None]], everything: bool
) -> None:
    plan = judged(*(image(ref, key=key) for ref, key in found), everything=everything)
    last = dict(found)
    for item in plan.items:
        assert item.name.startswith(f"{REPOSITORY}:")
        assert last[item.name] is not None


DU = """\
ID:\t\tabc*
Mutable:\ttrue
Reclaimable:\t{reclaimable}
Shared:\t\tfalse
Size:\t\t2.223GB
Description:\t{description}
Last used:\t3 minutes ago
Type:\t\texec.cachemount
"""
OURS = 'cached mount /root/.cache/uv from exec uv pip install with id "/imagefactory-wheels-amd64"'


def record(description: str, *, reclaimable: str = "true") -> CacheRecord:
    (found,) = parse(DU.format(description=description, reclaimable=reclaimable))
    return found


def test_a_cache_record_is_read_as_buildx_shows_it() -> None:
    assert record(OURS) == CacheRecord(
        id="abc", size=2_223_000_000, description=OURS, reclaimable=True
    )


def test_of_a_shared_engine_only_records_of_our_own_steps_go() -> None:
    theirs = "mount / from exec make all"
    plan = prune.cache([record(OURS), record(theirs)], private=False)
    assert [item.size for item in plan.items] == [2_223_000_000]
    assert [item.why for item in plan.kept] == ["not known to be imagefactory's"]
    assert len(prune.cache([record(theirs)], private=True).items) == 1
    assert prune.cache([record(OURS, reclaimable="false")], private=True).items == ()
