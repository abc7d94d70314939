"""Objects to models: directories that no object stands for, names that must not become paths, and tags."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.cloud_url import CloudUrl
from shoal.repository.cloud_listing import CloudListing, CloudObject, sort_out

URL = CloudUrl("s3", "bucket", "models")


def listing(*keys: str) -> CloudListing:
    """Of objects of one byte; where the key ends with a slash, of none."""
    return sort_out([CloudObject(key, 0 if key.endswith("/") else 1, "v1", 5) for key in keys], URL)


def fault(key: str) -> str:
    """The only stray's or problem's."""
    found = listing(key)
    assert not found.models
    [sentence] = [*found.problems.values(), *found.strays]
    start = f"object {key!r} in bucket 'bucket' of s3://bucket/models cannot be copied: "
    assert sentence.startswith(start)
    assert sentence.endswith("; rename it")
    return sentence.removeprefix(start).removesuffix("; rename it")


def test_directories_follow_from_names() -> None:
    found = listing("b/1/deep/model.onnx", "b/config.pbtxt", "a/1/model.onnx", "readme.txt", ".git/config")
    assert (list(found.models), found.problems, found.strays) == (["a", "b"], {}, ())
    model = found.models["b"]
    assert list(model.files) == ["1/deep/model.onnx", "config.pbtxt"]
    assert model.directories == {"1", "1/deep"}


def test_directories_that_are_objects_of_their_own() -> None:
    made = listing("identity/", "identity/1/").models["identity"]
    told = sort_out([CloudObject("identity/1", is_directory=True)], URL).models["identity"]
    assert not made.files
    assert made.directories == {"1"}
    assert told == made


def test_an_empty_object_in_the_place_of_a_directory_is_one() -> None:
    objects = [CloudObject("m/1", 0, "v1"), CloudObject("m/1/model.onnx", 1, "v1")]
    model = sort_out(objects, URL).models["m"]
    assert list(model.files) == ["1/model.onnx"]
    assert model.directories == {"1"}


def test_any_other_object_there_is_a_problem() -> None:
    assert listing("m/1", "m/1/model.onnx", "n/1/x").problems == {
        "m": "object 'm/1' in bucket 'bucket' of s3://bucket/models cannot be copied: other objects lie below it as "
        "below a directory; rename it"
    }


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("/etc/passwd", "a name in it is empty"),
        ("m//model.onnx", "a name in it is empty"),
        ("m/1//", "a name in it is empty"),
        ("../m/x", "it goes through '.' or '..'"),
        ("m/../../x", "it goes through '.' or '..'"),
        ("m/./x", "it goes through '.' or '..'"),
        ("m/..", "it goes through '.' or '..'"),
        ("m/a\\b", ""),
        ("m/a\0b", "it has a control character or is no UTF-8"),
        ("m/a\nb", "it has a control character or is no UTF-8"),
        ("m/a\udc80b", "it has a control character or is no UTF-8"),
        ("m/" + "a" * 256, "a name in it is longer than 255 bytes, or all of it longer than 1024"),
        ("m/" + "ä" * 128, "a name in it is longer than 255 bytes, or all of it longer than 1024"),
        ("m/" + "a/" * 510 + "aa", ""),
        ("m/" + "a/" * 510 + "aaa", "a name in it is longer than 255 bytes, or all of it longer than 1024"),
    ],
)
def test_names_that_must_not_become_paths(key: str, reason: str) -> None:
    if reason:
        assert fault(key) == reason
    else:
        assert list(listing(key).models) == ["m"]


@given(st.lists(st.text(st.sampled_from("a./\\\0ü"), max_size=12), max_size=8))
def test_no_name_leads_out_of_its_model(keys: list[str]) -> None:
    for model in listing(*keys).models.values():
        for path in (model.name, *model.files, *model.directories):
            assert all(part not in ("", ".", "..") for part in path.split("/"))
            assert not set(path) & set("\0")


def test_a_bad_name_is_a_problem_of_its_model_only() -> None:
    found = listing("good/1/x", "bad/1/x", "bad/../x", "../x/y")
    assert (list(found.models), list(found.problems), len(found.strays)) == (["good"], ["bad"], 1)


def test_a_hidden_directory_is_skipped_whatever_is_in_it() -> None:
    found = listing("good/1/x", ".git/a//b", ".git/x")
    assert (list(found.models), found.problems, found.strays) == (["good"], {}, ())


def test_a_tag_changes_with_everything_that_counts() -> None:
    def tag(*objects: CloudObject, name: str = "m") -> str:
        return sort_out([each._replace(key=f"{name}/{each.key}") for each in objects], URL).models[name].tag

    config, weights = CloudObject("config.pbtxt", 3, "v1", 5), CloudObject("1/model.onnx", 9, "v1", 5)
    plain = tag(config, weights)
    assert (
        plain == tag(weights, config) == tag(config, weights._replace(modified_s=6))
    )  # the same content, uploaded again
    others = [
        tag(config),
        tag(config, weights._replace(tag="v2")),
        tag(config, weights._replace(size=8)),
        tag(config, weights._replace(key="2/model.onnx")),
        tag(config, weights, CloudObject("2/")),
        tag(config, weights, name="n"),
    ]
    assert len({plain, *others}) == 1 + len(others)


def test_a_subtree_has_a_tag_of_its_own() -> None:
    old = listing("m/1/model.onnx", "m/labels.txt").models["m"]
    new = listing("m/1/model.onnx", "m/2/model.onnx", "m/labels.txt").models["m"]
    assert old.subtree_tag("1") == new.subtree_tag("1")
    assert old.tag != new.tag
