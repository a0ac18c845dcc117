"""Image files are known by their headers: whole, of a known format, within bounds, or refused by name."""

import base64
import struct
from dataclasses import replace

import pytest
from deepseek_recipe import (
    DataUrlImageSource,
    ImageQuota,
    ImageResolver,
    OpenCvImagePreprocessor,
    ReqwestImageFetcher,
)
from hypothesis import given
from hypothesis import strategies as st

from recipe.errors import ParameterInvalid
from recipe.image_header import Header, ImageUnreadable, read_header
from recipe.images import Image, ImageBounds, data_of, in_base64, param_of, read_image
from tests.pictures import (
    GIF,
    JPEG,
    TURN,
    WEBP,
    WEBP_LOSSLESS,
    WEBP_TURNED,
    bomb,
    png,
    turned_jpeg,
)

FILES = {
    "png": (png(5, 3), Header("image/png", 5, 3)),
    "png turned": (png(5, 3, (b"eXIf", TURN)), Header("image/png", 3, 5)),
    "png of text": (png(640, 480, (b"tEXt", b"Comment\0eXIf IHDR")), Header("image/png", 640, 480)),
    "jpeg": (JPEG, Header("image/jpeg", 5, 3)),
    "jpeg turned": (turned_jpeg(), Header("image/jpeg", 3, 5)),
    "webp": (WEBP, Header("image/webp", 5, 3)),
    "webp lossless": (WEBP_LOSSLESS, Header("image/webp", 5, 3)),
    "webp turned": (WEBP_TURNED, Header("image/webp", 3, 5)),
    "gif": (GIF, Header("image/gif", 5, 3)),
}
each = pytest.mark.parametrize(("data", "header"), FILES.values(), ids=FILES)
SOURCE = DataUrlImageSource("data:", path="messages.0.content[1]")


def read(data: bytes, bounds: ImageBounds | None = None) -> Image:
    return read_image(data, SOURCE, bounds or ImageBounds())


def refused(data: bytes, bounds: ImageBounds | None = None) -> ParameterInvalid:
    with pytest.raises(ParameterInvalid) as caught:
        read(data, bounds)
    assert caught.value.param == "messages[0].content[1]"
    return caught.value


@each
def test_a_header_says_format_and_dimensions_as_the_image_is_shown(data: bytes, header: Header) -> None:
    assert read_header(data) == header
    image = read(data)
    assert (image.media_type, image.width, image.height) == (header.media_type, header.width, header.height)


@each
def test_a_file_that_was_cut_off_anywhere_is_refused(data: bytes, header: Header) -> None:
    whole = len(data) - (1 if data.startswith(b"GIF") else 0)  # a GIF's last byte says that there is no more
    for end in range(whole):
        with pytest.raises(ImageUnreadable):
            read_header(data[:end])
    assert refused(data[: whole - 1]).malformed


@given(
    file=st.sampled_from([data for data, _ in FILES.values()]),
    at=st.integers(0, 400),
    patch=st.binary(min_size=1, max_size=12),
)
def test_spoilt_files_are_read_or_refused_and_nothing_else(file: bytes, at: int, patch: bytes) -> None:
    at %= len(file)
    spoilt = file[:at] + patch + file[at + len(patch) :]
    try:
        header = read_header(spoilt)
    except ImageUnreadable:
        return
    assert header.width > 0
    assert header.height > 0


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "no PNG, JPEG, GIF or WebP"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "no PNG, JPEG, GIF or WebP"),
        (b"BM" + bytes(60), "no PNG, JPEG, GIF or WebP"),
        (b"<html>404</html>", "no PNG, JPEG, GIF or WebP"),
        (png(0, 3), "no pixels"),
        (png(5, 3, (b"IHDR", struct.pack(">IIBBBBB", 9, 9, 1, 0, 0, 0, 0))), "out of order"),
        (JPEG[:2] + JPEG[JPEG.index(b"\xff\xc2") :][:13] + JPEG[2:], "dimensions twice"),
        (GIF[:6] + struct.pack("<HH", 1, 1) + GIF[10:], "larger than the image"),
        (b"RIFF\x0c\0\0\0WEBPALPH\0\0\0\0", "no frame"),
    ],
)
def test_what_no_reader_agrees_about_is_refused(data: bytes, why: str) -> None:
    error = refused(data)
    assert why in str(error)
    assert error.malformed


def test_a_bomb_is_refused_by_what_it_declares() -> None:
    error = refused(bomb())
    assert len(bomb()) < 100
    assert "16777216 pixels" in str(error)
    assert "65536 x 65536" in str(error)


def test_each_bound_says_its_name_and_how_much_it_is() -> None:
    bounds = ImageBounds(1, 100, 150, 15, 5)
    assert read(png(5, 3), bounds).width == 5
    assert "15 pixels (pixels_max)" in str(refused(png(4, 4), bounds))
    assert "5 on a side" in str(refused(png(6, 1), bounds))
    assert "100 bytes (image_bytes_max)" in str(refused(png(5, 3) + bytes(100), bounds))
    with pytest.raises(ParameterInvalid, match=r"1 images \(image_count_max\); this holds 2"):
        bounds.count([SOURCE, SOURCE])
    with pytest.raises(ParameterInvalid, match=r"150 bytes together \(request_bytes_max\)"):
        bounds.total([read(png(5, 3))] * 3)


def test_an_image_is_known_by_its_digest_and_how_it_is_to_be_seen() -> None:
    one, other = read(png(5, 3)), read(png(5, 3, shade=1))
    assert one.sha256 != other.sha256
    assert one == replace(other, data=one.data, sha256=one.sha256)
    assert one.detail == "high"


@pytest.mark.parametrize("encode", [base64.b64encode, base64.encodebytes])
@pytest.mark.parametrize("data", [png(30, 20), JPEG, GIF, WEBP], ids=["png", "jpeg", "gif", "webp"])
def test_data_in_a_url_is_what_deepseek_recipe_finds_there(encode: object, data: bytes) -> None:
    assert callable(encode)
    text = encode(data).decode()
    quota = ImageQuota()
    resolver = ImageResolver(ReqwestImageFetcher(), OpenCvImagePreprocessor())
    for body in (text, text.rstrip("=\n")):
        url = f"data:image/png;base64,{body}"
        resolver.resolve([DataUrlImageSource(url)], quota)
        assert data_of(url) == data
    assert quota.byte_size() == 2 * len(data)
    percent = "data:image/png," + "".join(f"%{byte:02x}" for byte in data)
    assert data_of(percent) == data
    assert data_of(in_base64(percent)) == data


@pytest.mark.parametrize(
    "url", ["https://example.org/a,b", "DATA:image/png;BASE64,AAAA", "data:image/png", "hello", ""]
)
def test_urls_without_spelt_out_data_stay_as_they_are(url: str) -> None:
    assert in_base64(url) in (url, f"{url};base64,")


@pytest.mark.parametrize(
    ("path", "param"),
    [
        (".messages[2]", "messages[2]"),
        ("messages.0.content[1]", "messages[0].content[1]"),
        ("messages.2.content.0.tool_result", "messages[2].content[0]"),
        ("input[0]", "input[0]"),
        ("", "messages"),
    ],
)
def test_a_refusal_names_the_place_as_its_surface_does(path: str, param: str) -> None:
    assert param_of(DataUrlImageSource("data:", path=path)) == param
