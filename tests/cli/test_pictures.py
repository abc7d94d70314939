"""Pictures as inputs of `shoal infer` and `run`: in the layout of the input, and in the scale that is asked for."""

import builtins
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from shoal.cli.run_inputs import InputError, read_requests
from shoal.model_config import pbtxt
from shoal.model_config.normalise import normalise

#: A picture of 3 by 2 pixels: red, green, blue, white, grey, black.
PIXELS = np.array(
    [[[255, 0, 0], [0, 255, 0], [0, 0, 255]], [[255, 255, 255], [128, 128, 128], [0, 0, 0]]], np.uint8
)  # fmt: skip
GREY = [[76, 150, 29], [255, 128, 0]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file of the picture."""
    Image.fromarray(PIXELS).save(tmp_path / "six,pixels.png")
    return tmp_path / "six,pixels.png"


def read(text: str, dims: Sequence[int], datatype: str = "UINT8", max_batch_size: int = 0) -> Any:
    """The tensor of a value for an input of these dims."""
    config = f"""
    name: "m" backend: "identity" max_batch_size: {max_batch_size}
    input {{ name: "X" data_type: TYPE_{datatype} dims: [ {", ".join(map(str, dims))} ] }}
    output {{ name: "Y" data_type: TYPE_{datatype} dims: [ {", ".join(map(str, dims))} ] }}
    """
    (request,) = read_requests(normalise(pbtxt.parse(config, Path("m"))), [("X", text)], None, None)
    return request.inputs["X"]


def test_a_picture_has_the_layout_of_the_input(path: Path) -> None:
    np.testing.assert_array_equal(read(f"@{path}", [2, 3, 3]), PIXELS)
    np.testing.assert_array_equal(read(f"@{path}", [-1, -1, 3]), PIXELS)
    np.testing.assert_array_equal(read(f"@{path}", [3, 2, 3]), PIXELS.transpose(2, 0, 1))
    np.testing.assert_array_equal(read(f"@{path}", [3, -1, -1]), PIXELS.transpose(2, 0, 1))
    np.testing.assert_array_equal(read(f"@{path}", [-1, -1, -1]), PIXELS.transpose(2, 0, 1))
    np.testing.assert_array_equal(read(f"@{path}", [1, 2, 3]), [GREY])
    np.testing.assert_array_equal(read(f"@{path}", [2, 3]), GREY)
    np.testing.assert_array_equal(read(f"@{path}", [2, 3, 4])[..., 3], np.full((2, 3), 255))
    assert read(f"@{path}", [3, 224, 224], "FP32", max_batch_size=8).shape == (1, 3, 224, 224)
    assert read(f"@{path}", [16]).shape == (16,)


def test_pixels_have_the_scale_that_is_asked_for(path: Path) -> None:
    np.testing.assert_allclose(read(f"@{path},0..1", [2, 3, 3], "FP32"), PIXELS / 255, rtol=1e-6)
    np.testing.assert_allclose(read(f"@{path},-1..1", [2, 3, 3], "FP64"), PIXELS / 127.5 - 1)
    np.testing.assert_array_equal(read(f"@{path},0..16", [2, 3], "INT8"), np.round(np.array(GREY) / 15.9375))
    white = read(f"@{path},imagenet", [3, 2, 3], "FP32")[:, 1, 0]
    np.testing.assert_allclose(white, [2.2489, 2.4286, 2.64], atol=1e-4)
    assert read(f"@{path}", [2, 3, 3], "BF16").dtype == np.uint16


def test_a_picture_is_turned_as_its_camera_says(path: Path) -> None:
    turned = Image.Exif()
    turned[0x0112] = 6  # Orientation: the top is on the right
    Image.fromarray(PIXELS).save(path, exif=turned)
    np.testing.assert_array_equal(read(f"@{path}", [-1, -1, 3]), np.rot90(PIXELS, -1))


def test_greys_of_16_bits_are_as_bright_as_those_of_8(path: Path) -> None:
    Image.fromarray(np.array(GREY, np.uint16) * 257).save(path)
    np.testing.assert_array_equal(read(f"@{path}", [2, 3]), GREY)


@pytest.mark.parametrize(
    ("datatype", "scale", "most"), [("INT8", "", 127), ("UINT8", ",-1..1", 255), ("UINT8", ",0..999", 255)]
)
def test_pixels_beyond_the_datatype_are_refused(path: Path, datatype: str, scale: str, most: int) -> None:
    with pytest.raises(InputError, match=rf"and the pixels are .*: @.*six,pixels.png,0..{most} has them fit"):
        read(f"@{path}{scale}", [2, 3, 3], datatype)


@pytest.mark.parametrize(
    ("name", "dims", "sentence"),
    [
        ("none.png", [2, 3], "cannot read .*none.png: No such file or directory"),
        ("text.png", [2, 3], "text.png is no picture"),
        ("damaged.png", [2, 3], "cannot read .*damaged.png: broken PNG file"),
        ("six,pixels.png", [2, 3, 5], "a picture has height, width and 1, 3 or 4 channels"),
        ("six,pixels.png", [15], "a picture has height, width and 1, 3 or 4 channels"),
        ("six,pixels.png,imagenet", [2, 3], "the scale imagenet is of 3 channels"),
        ("six,pixels.png,half", [2, 3], r"the pixels' scale is 0..1 or the like, or imagenet, not 'half'"),
        ("sound.wav", [2, 3], "is read from .npy, .json or a picture, not from"),
    ],
)
def test_what_is_no_picture_for_the_input_is_refused(path: Path, name: str, dims: list[int], sentence: str) -> None:
    for other in ("text.png", "sound.wav"):
        path.with_name(other).write_text("no picture")
    damaged = bytearray(path.read_bytes())
    damaged[damaged.index(b"IDAT") - 1] //= 2  # the size of the pixels, behind which another part is looked for
    path.with_name("damaged.png").write_bytes(damaged)
    with pytest.raises(InputError, match=sentence):
        read(f"@{path.with_name(name)}", dims)


def test_a_picture_that_would_fill_the_memory_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 2)
    with pytest.raises(InputError, match="exceeds limit of 4 pixels"):
        read(f"@{path}", [2, 3])


def test_without_pillow_it_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("PIL"):
            raise ImportError(name)
        return whole(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InputError, match=r"a picture is read by Pillow \(pip install pillow\)"):
        read(f"@{path}", [2, 3])


def test_a_text_input_takes_the_files_bytes(path: Path) -> None:
    assert read(f"@{path}", [1], "STRING").tolist() == [path.read_bytes()]


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_what_shows_through_is_white_whatever_colour_is_hidden_there(path: Path, mode: str) -> None:
    hidden = np.full((2, 3, 4), [200, 0, 0, 0], np.uint8)  # red, and transparent
    hidden[0, 0] = [0, 0, 0, 255]
    picture = Image.fromarray(hidden)
    if mode == "P":
        picture = picture.quantize()
    picture.convert(mode).save(path)
    seen = np.full((2, 3, 3), 255)
    seen[0, 0] = 0
    np.testing.assert_array_equal(read(f"@{path}", [2, 3, 3]), seen)
    np.testing.assert_array_equal(read(f"@{path}", [2, 3]), seen[..., 0])
    whole = read(f"@{path}", [2, 3, 4])
    np.testing.assert_array_equal(whole[..., 3], hidden[..., 3])  # an input of four channels gets what is there
