"""Places in buckets of a real server: what they promise beyond what every place does."""

from __future__ import annotations

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest

from roundweave.storage.errors import PlaceError, PlaceTaken, UsageError
from roundweave.storage.places import objects
from roundweave.storage.places.base import Place, beside, together
from roundweave.storage.places.objects import MAKING, of_profile
from roundweave.storage.places.schemes import place_of
from tests.storage.conftest import thorough
from tests.storage.places.s3_server import SECRET, free_port


def refused(place) -> str:
    """The one line of a place that cannot be used."""
    for act in (lambda: place.write("a", b""), lambda: place.create("a", b""), place.make, place.names):
        with pytest.raises(PlaceError) as error:
            act()
        line = str(error.value)
        assert "\n" not in line
        assert SECRET not in line
        assert line.startswith(("cannot write s3://", "cannot list s3://"))
    with pytest.raises(PlaceError), place.aside() as aside:
        aside.write("a", b"")
    return line


NOWHERE = f"http://127.0.0.1:{free_port()}"
KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
ENVIRONMENTS: dict[str, dict[str, str | None]] = {
    "the server does not answer; is AWS_ENDPOINT_URL right": {"AWS_ENDPOINT_URL": NOWHERE},
    "set AWS_ALLOW_HTTP=true": {"AWS_ALLOW_HTTP": None},
    f"set {KEYS[0]} and {KEYS[1]}": dict.fromkeys(KEYS) | {"AWS_METADATA_ENDPOINT": NOWHERE},
    "there is no such bucket; make it": {},
}


@pytest.mark.parametrize("said", [*thorough(*[*ENVIRONMENTS][:-1]), [*ENVIRONMENTS][-1]])  # repeated for seconds
def test_what_is_wrong_with_a_bucket_is_told_in_seconds(s3, monkeypatch, said) -> None:
    place = place_of(s3.bucket() if ENVIRONMENTS[said] else "s3://no-such-bucket/runs")
    for name, value in ENVIRONMENTS[said].items():
        monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, value)
    assert said in refused(place)
    with pytest.raises(PlaceError, match=f"cannot read {place}/a: "):
        place.read("a")


CONFIG = f"""
[default]
region = eu-west-1
[profile work]
region = us-west-2
endpoint_url = {NOWHERE}
[profile single]
sso_session = corp
aws_access_key_id = old
aws_secret_access_key = old
[profile role]
role_arn = arn:aws:iam::1:role/x
source_profile = work
[profile bare]
region = us-west-2
"""
CREDENTIALS = f"[work]\naws_access_key_id = tester\naws_secret_access_key = {SECRET}%x\naws_session_token = a=b\n"


@pytest.fixture
def profiles(monkeypatch, tmp_path: Path) -> Path:
    """A home with profiles of AWS, and an environment without keys."""
    (folder := tmp_path / ".aws").mkdir()
    (folder / "config").write_text(CONFIG)
    (folder / "credentials").write_text(CREDENTIALS)
    monkeypatch.setenv("HOME", str(tmp_path))
    return folder


def test_a_profile_gives_what_the_environment_does_not(profiles: Path) -> None:
    keys = {"aws_access_key_id": "tester", "aws_secret_access_key": f"{SECRET}%x", "aws_session_token": "a=b"}
    work = {"AWS_PROFILE": "work"}
    assert of_profile(work) == keys | {"region": "us-west-2", "endpoint_url": NOWHERE}
    assert of_profile(work | {"AWS_DEFAULT_REGION": "here", "AWS_ENDPOINT_URL": "there"}) == keys
    assert of_profile(work | {"AWS_ACCESS_KEY_ID": "mine"}) == of_profile(work | {"AWS_SKIP_SIGNATURE": "1"}) == {}
    assert of_profile({}) == {"region": "eu-west-1"}
    assert of_profile({"AWS_CONFIG_FILE": "/nowhere"}) == {}


@pytest.mark.parametrize("name", ["single", "role", "bare", "none"])
def test_a_profile_whose_keys_are_elsewhere_is_refused(profiles: Path, monkeypatch, name: str) -> None:
    for key in KEYS:
        monkeypatch.delenv(key, raising=False)
    monkeypatch.setenv("AWS_PROFILE", name)
    with pytest.raises(PlaceError, match=f"aws configure export-credentials --profile {name} --format env"):
        place_of("s3://a/b").names()


def test_a_file_of_profiles_that_is_broken_shows_no_keys(profiles: Path) -> None:
    (profiles / "credentials").write_text(f"aws_secret_access_key = {SECRET}")
    with pytest.raises(PlaceError, match=r"a file of AWS's profiles is broken \(MissingSection.*\); repair it$"):
        of_profile({"AWS_PROFILE": "work"})


def test_a_bucket_is_written_with_the_keys_of_a_profile(s3, profiles: Path, monkeypatch) -> None:
    place = place_of(f"{s3.bucket()}/runs")
    for key in (*KEYS, "AWS_ENDPOINT_URL", "AWS_REGION"):
        monkeypatch.delenv(key)
    (profiles / "config").write_text(CONFIG.replace(NOWHERE, s3.environment["AWS_ENDPOINT_URL"]))
    monkeypatch.setenv("AWS_PROFILE", "work")
    place.write("a", b"x")
    assert bytes(place.read("a") or b"") == b"x"


def test_a_place_carries_no_credentials(s3) -> None:
    place = place_of(s3.bucket())
    place.write("a", b"x")
    told = [pickle.dumps(place), repr(place).encode(), str(place).encode()]
    assert not any(SECRET.encode() in each or b"tester" in each for each in told)


def test_an_address_that_is_none_is_refused() -> None:
    for address in ("s3://", "s3://bucket/../other", "s3://bucket//a", "s3://bucket/./a"):
        with pytest.raises(UsageError, match="give s3://BUCKET/NAME"):
            place_of(address)


def test_more_names_than_a_page_has(s3) -> None:
    place = place_of(s3.bucket())
    names = sorted(f"n{number}" for number in range(110))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: place.write(f"a/{name}", b""), names))
    assert place.names("a") == names
    assert list(place_of(f"{place}/a").sizes()) == names
    place.delete("a")
    assert place.names() == []


# Making a place, which takes many requests.


class Killed(BaseException):
    """As a process that ends at once: nothing is cleaned up."""


def cut_short(monkeypatch, place, after: int) -> None:
    """Begin to make a place, whose maker is killed after so many contents."""
    create, made = objects.ObjectPlace.create, []

    def creating(self, key, *pieces, durable=False):
        if len(made) == after:
            raise Killed
        made.append(key)
        return create(self, key, *pieces, durable=durable)

    with monkeypatch.context() as patch, pytest.raises(Killed), place.aside() as aside:
        for key in ("deep/1", "deep/2", "old"):
            aside.write(key, b"old")
        patch.setattr(objects.ObjectPlace, "at_once", 1)
        patch.setattr(objects.ObjectPlace, "create", creating)


@pytest.mark.parametrize("after", [1, *thorough(2), 3])
def test_what_a_killed_maker_left_is_never_mixed_in(s3, monkeypatch, after) -> None:
    place = place_of(f"{s3.bucket()}/a")
    cut_short(monkeypatch, place, after)
    assert not place.has("old"), "what is at the top comes last"
    with pytest.raises(PlaceTaken, match="is being made by another process, or one was killed"):
        make(place)
    monkeypatch.setattr(objects, "PATIENCE", timedelta(0))
    make(place)
    assert place.sizes() == {"deep/1": 3, "new": 3}
    assert bytes(place.read("deep/1")) == b"new"


def make(place) -> None:
    with place.aside() as aside:
        aside.write("new", b"new")
        aside.write("deep/1", b"new")


def test_a_maker_killed_at_its_end_has_made_it(s3, monkeypatch) -> None:
    place = place_of(f"{s3.bucket()}/a")
    make(place)
    place.write(MAKING, b"of a killed maker")
    assert place.names() == ["deep", "new"]
    monkeypatch.setattr(objects, "PATIENCE", timedelta(0))
    with pytest.raises(PlaceTaken, match="exists already"):
        make(place)
    assert place.sizes() == {"deep/1": 3, "new": 3}


def test_of_makers_at_once_one_makes_it(s3) -> None:
    place, start, made = place_of(f"{s3.bucket()}/a"), threading.Barrier(4), []

    def making(number: int) -> None:
        with suppress(PlaceTaken):
            with place.aside() as aside:
                aside.write(f"deep/{number}", str(number).encode())
                aside.write("top", str(number).encode())
                start.wait()
            made.append(number)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(making, range(4)))
    assert place.sizes() == {f"deep/{made[0]}": 1, "top": 1}
    assert bytes(place.read("top")) == str(made[0]).encode()
    assert len(made) == 1


# Several requests at once.


@pytest.fixture(params=["bucket", "disk"])
def place(request, tmp_path) -> Place:
    return place_of(request.getfixturevalue("s3").bucket() if request.param == "bucket" else tmp_path)


def test_what_fails_beside_is_told_at_the_end(place) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), beside(place, 1) as call:
        call(fail)


def test_together_keeps_the_order(place) -> None:
    assert together(place, lambda number: number * number, range(40)) == [n * n for n in range(40)]
