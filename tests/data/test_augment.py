from __future__ import annotations

import pytest
import torch
from torch import Tensor

from headway.base.errors import ConfigError
from headway.data.augment import Augment, crop, cutout, flip, parse, rotate


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def batch(n: int = 16, c: int = 3, h: int = 8, w: int = 6, dtype: torch.dtype = torch.uint8) -> Tensor:
    return torch.randint(0, 256, (n, c, h, w), generator=generator(99)).to(dtype)


ALL = ["flip", "crop(2)", "cutout(3)", "rotate(30)", "crop(4)+flip", "crop(2)+flip+cutout(3)+rotate(15)"]


@pytest.mark.parametrize("spec", ALL)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float64])
def test_shape_and_type_stay_and_the_generator_decides(spec: str, dtype: torch.dtype):
    x = batch(dtype=dtype)
    before = x.clone()
    augment = parse(spec)
    one, two, other = (augment(x, generator(s)) for s in (1, 1, 2))
    assert one.shape == x.shape
    assert one.dtype == dtype
    assert torch.equal(one, two)
    assert not torch.equal(one, other)
    assert torch.equal(x, before)


@pytest.mark.parametrize("spec", ALL)
def test_bytes_and_floats_are_augmented_alike(spec: str):
    x = batch()
    assert torch.equal(parse(spec)(x, generator()).float(), parse(spec)(x.float(), generator()))


def test_flip_mirrors_about_half_the_images_left_to_right():
    x = torch.tensor([[[[1, 2], [3, 4]]]], dtype=torch.uint8)
    assert flip(x, torch.tensor([True])).tolist() == [[[[2, 1], [4, 3]]]]
    many = parse("flip")(x.repeat(2000, 1, 1, 1), generator())
    mirrored = (many == x.flip(3)).flatten(1).all(1)
    kept = (many == x).flatten(1).all(1)
    assert (mirrored ^ kept).all()
    assert 900 < mirrored.sum() < 1100


def test_crop_equals_a_loop_over_the_images():
    x = batch()
    pad = 3
    offset = torch.randint(0, 2 * pad + 1, (2, len(x)), generator=generator(5))
    padded = torch.zeros(16, 3, 14, 12, dtype=torch.uint8)
    padded[:, :, pad:-pad, pad:-pad] = x
    naive = torch.stack([padded[i, :, r : r + 8, c : c + 6] for i, (r, c) in enumerate(offset.T.tolist())])
    assert torch.equal(crop(x, pad, offset), naive)
    assert torch.equal(crop(x, pad, torch.full((2, 16), pad)), x)


def test_crop_reaches_every_offset():
    x = torch.zeros(3000, 1, 3, 3, dtype=torch.uint8)
    x[:, :, 1, 1] = 1
    seen = parse("crop(1)")(x, generator()).sum(0)[0]
    assert (seen > 250).all()
    assert seen.sum() == 3000


def test_cutout_fills_a_square_that_is_cut_at_the_border():
    x = torch.ones(3, 2, 6, 6, dtype=torch.uint8)
    centre = torch.tensor([[3, 0, 5], [3, 0, 2]])
    zeros = (cutout(x, 4, centre) == 0)[:, 0]
    assert zeros.flatten(1).sum(1).tolist() == [16, 4, 12]
    assert zeros[0, 1:5, 1:5].all()
    assert zeros[1, :2, :2].all()
    assert zeros[2, 3:, 0:4].all()
    odd = (cutout(x[:1], 3, torch.tensor([[2], [3]])) == 0)[0, 0]
    assert odd[1:4, 2:5].all()
    assert odd.sum() == 9


def test_cutout_writes_the_fill_of_each_channel():
    x = torch.full((1, 3, 4, 4), 200, dtype=torch.uint8)
    out = cutout(x, 8, torch.tensor([[2], [2]]), (125.3, 123.0, 113.9))
    assert out[0, :, 1, 1].tolist() == [125, 123, 114]
    augment = Augment((("cutout", 8),), fill=(1.5, 2.5, 3.5))
    assert augment(x.float(), generator())[0].flatten(1).amin(1).tolist() == [1.5, 2.5, 3.5]


def test_cutout_centres_cover_the_image_evenly():
    seen = (parse("cutout(1)")(torch.ones(6000, 1, 2, 3), generator()) == 0).sum(0)[0]
    assert seen.sum() == 6000
    assert (seen - 1000).abs().max() < 150


@pytest.mark.parametrize("turns", [1, 2, 3])
def test_rotation_by_right_angles_is_exact(turns: int):
    x = batch(4, 3, 6, 6)
    assert torch.equal(rotate(x, torch.full((4,), 90.0 * turns)), torch.rot90(x, turns, (2, 3)))


def test_rotation_by_nothing_changes_nothing_and_half_turns_work_on_oblong_images():
    x = batch(4, 3, 9, 5)
    assert torch.equal(rotate(x, torch.zeros(4)), x)
    assert torch.equal(rotate(x, torch.full((4,), 180.0)), x.flip(2, 3))


def test_rotation_of_an_oblong_image_keeps_its_proportions():
    x = torch.zeros(1, 1, 5, 9, dtype=torch.uint8)
    x[0, 0, 2, 2:7] = 1  # a bar of five pixels through the centre
    turned = rotate(x, torch.tensor([90.0]))
    assert turned[0, 0, :, 4].tolist() == [1, 1, 1, 1, 1]
    assert turned.sum() == 5


def test_rotation_angles_stay_within_the_limit():
    x = torch.zeros(500, 1, 41, 41)
    x[:, :, 19:22, 33:36] = 1  # a block 14 pixels right of the centre
    turned = parse("rotate(15)")(x, generator())[:, 0]
    rows = (turned.sum(2) * torch.arange(41)).sum(1) / turned.sum((1, 2)) - 20
    assert rows.abs().max() <= 4.2  # 14 sin 15 degrees = 3.6
    assert rows.min() < -3
    assert rows.max() > 3


def test_none_is_false_and_returns_the_same_tensor():
    x = batch()
    assert not parse("none")
    assert parse("none")(x, generator()) is x
    assert parse("flip")
    assert str(parse("none")) == "none"


@pytest.mark.parametrize("spec", [" CROP( 4 ) + Flip ", "crop(4)+flip"])
def test_specs_have_one_canonical_form(spec: str):
    assert str(parse(spec)) == "crop(4)+flip"
    assert parse(str(parse(spec))) == parse(spec)
    assert str(parse("rotate(7.5)")) == "rotate(7.5)"


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("flop", "did you mean 'flip'"),
        ("", "known: none, flip"),
        ("crop", "crop takes pixels above 0, as in crop"),
        ("crop(0)", "crop takes pixels above 0"),
        ("crop(2.5)", "crop takes pixels"),
        ("crop(-1)", "crop takes pixels"),
        ("rotate(200)", "too much"),
        ("rotate(1.2.3)", "rotate takes degrees"),
        ("flip(1)", "flip takes no number"),
        ("none+flip", "write none alone"),
        ("flip+", "unknown step ''"),
        ("flip+flip", "has the step flip twice: keep one"),
        ("crop(2)+flip+crop(4)", "has the step crop twice: keep one"),
    ],
)
def test_bad_specs_are_refused(spec: str, says: str):
    with pytest.raises(ConfigError) as caught:
        parse(spec)
    assert says in str(caught.value)


def test_tables_cannot_be_augmented():
    with pytest.raises(ConfigError, match="images only"):
        parse("flip")(torch.zeros(4, 7), generator())


@pytest.mark.parametrize(
    ("spec", "height", "width", "way"),
    [
        ("crop(8)", 8, 9, "crop(8) is too much for images of 8 x 9; use at most crop(7)"),
        ("crop(40)+flip", 9, 8, "crop(40) is too much for images of 9 x 8; use at most crop(7)"),
        ("flip+cutout(9)", 8, 8, "cutout(9) is too much for images of 8 x 8; use at most cutout(8)"),
        ("crop(1)", 1, 5, "crop(1) is too much for images of 1 x 5; leave crop out"),
    ],
)
def test_steps_that_may_leave_nothing_of_an_image_are_refused(spec: str, height: int, width: int, way: str):
    with pytest.raises(ConfigError) as caught:
        parse(spec).check_fits(height, width)
    assert str(caught.value) == f"augment={spec}: {way}"


def test_steps_that_leave_something_of_an_image_are_taken():
    parse("crop(7)+cutout(8)+rotate(180)+flip").check_fits(8, 8)
