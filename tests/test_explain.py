"""`vidcom2.explain` reports the model's own numbers, and draws pictures that can be read."""

import dataclasses
import html
import itertools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Family, only
from make_clips import INTERRUPTION
from matplotlib.text import Text
from PIL import Image
from test_cli import vidcom2 as command

import vidcom2
from vidcom2.asking.prompting import prepare_inputs
from vidcom2.configuration.compression_settings import COMPRESSION_METHODS, CompressionSettings
from vidcom2.explaining.drawing import CHOSEN_FRAMES, MOST_FRAMES, drawing
from vidcom2.explaining.explain import Figure
from vidcom2.explaining.explanation import (
    COMPUTED_COLOR,
    DIMMED,
    LIGHT,
    NOT_COVERED,
    OUTLINE_COLOR,
    Explanation,
    compare,
)
from vidcom2.explaining.explanation_page import page_html
from vidcom2.loading.checkpoints import Checkpoint
from vidcom2.video.reading import Video, read_video

LANDSCAPE, PORTRAIT = (54, 96), (96, 54)


def explained(num_frames: int = 8, size: tuple[int, int] = LANDSCAPE, grid: tuple[int, int] = (3, 4), **changes):
    """Make an explanation from made-up numbers. Each frame keeps the tokens with the highest u."""
    rng = np.random.default_rng(num_frames)
    height, width = grid
    u = rng.normal(-1.0, 0.3, (num_frames, height * width))
    budgets = rng.integers(1, height * width, num_frames)
    kept = (-u).argsort(axis=1).argsort(axis=1) < budgets[:, None]
    values = {
        "model": "org/a-model",
        "settings": {"retention_ratio": 0.25},
        "frames": rng.integers(0, 256, (num_frames, *size, 3), dtype=np.uint8),
        "seconds": np.arange(num_frames) * 0.5,
        "video_frames": num_frames,
        "frame_budgets": budgets,
        "kept": kept.reshape(num_frames, height, width),
        "video_tokens": (int(kept.sum()), kept.size),
        "frame_uniqueness": u.mean(axis=1),
        "token_uniqueness": u.reshape(num_frames, height, width),
    }
    return Explanation(**{**values, **changes})


def some_computed(num_frames: int, grid: tuple[int, int] = (7, 7)) -> np.ndarray:
    """Return (T, rows, columns) bool: all groups of the first frame, and some of the others."""
    computed = np.random.default_rng(0).random((num_frames, *grid)) < 0.4
    computed[0] = True
    return computed


def explained_by(family: Family, video: Video) -> Explanation:
    (explanation,) = vidcom2.explain(video, family.model, processor=family.processor).ways
    return explanation


def token_of_pixel(explanation: Explanation, y: int, x: int) -> tuple[int, int] | None:
    """Find the row and column of the token over the middle of a pixel."""
    frame_height, frame_width = explanation.frames.shape[1:3]
    height, width = explanation.kept.shape[1:]
    top, left, tall, wide = explanation.covered
    row = (y + 0.5 - frame_height * top) // (frame_height * tall / height)
    column = (x + 0.5 - frame_width * left) // (frame_width * wide / width)
    return (int(row), int(column)) if 0 <= row < height and 0 <= column < width else None


# -- numbers and titles -----------------------------------------------------------------------------------------------


def test_an_explanation_has_the_models_numbers_its_grid_and_whole_frames(family: Family) -> None:
    """LLaVA's processors squeeze a frame to a square, and LLaVA-Video's pooling leaves out the last of 7 patches.
    LLaVA-NeXT-Video's processor cuts the square out of the middle."""
    video = read_video(str(INTERRUPTION), 8)
    explanation = explained_by(family, video)
    inputs = prepare_inputs(family.processor, "", video)
    with torch.no_grad():
        compression = family.model.get_video_features(**family.videos_of(inputs)).video_compressions[0]
    scored = family.case.scored_frames(8)
    assert explanation.kept.shape == (scored, *((12, 16) if family.case.keeps_sizes else family.case.grid))
    assert len(explanation.frames) == len(explanation.seconds) == scored
    assert np.flatnonzero(explanation.kept).tolist() == compression.indices.tolist()
    assert explanation.frame_budgets.tolist() == compression.frame_budgets.tolist()
    assert explanation.frame_uniqueness.tolist() == compression.frame_uniqueness.tolist()
    assert explanation.token_uniqueness.reshape(scored, -1).tolist() == compression.token_uniqueness.tolist()
    assert explanation.seconds.tolist() == video.seconds[:: family.case.files_frames_per_frame].tolist()
    assert explanation.settings == {"retention_ratio": 0.25} and explanation.video_frames == 8
    assert explanation.covered == pytest.approx(family.case.covered)
    assert ("no token covers the white edge" in explanation.subtitle) == (family.case.covered != (0, 0, 1, 1))
    wide = dataclasses.replace(video, frames=np.ascontiguousarray(video.frames[:, :120]))  # 120 x 320
    pictures = explained_by(family, wide).frames
    assert pictures.shape[2] / pictures.shape[1] == pytest.approx(320 / 120, rel=0.01)
    small = np.asarray(Image.fromarray(pictures[0]).resize((320, 120)), dtype=float)
    assert np.abs(small - wide.frames[0]).mean() < 4  # so nothing is cut off


def test_a_call_compares_settings_and_names_those_that_differ_from_the_defaults(family: Family) -> None:
    settings = {"retention_ratio": 0.5, "compression_method": "random", "compression_rounding": "round"}
    given = {"num_frames": 4, "compare_with": [{"retention_ratio": 0.25}], "processor": family.processor}
    figure = vidcom2.explain(INTERRUPTION, family.model, **given, **settings)
    for explanation, ratio in zip(figure.ways, (0.5, 0.25), strict=True):
        size = explanation.kept[0].size
        share = round(size * ratio) / size  # of the tokens of a frame, half to even
        assert explanation.video_frames == 4 and explanation.kept.mean() == pytest.approx(share, abs=0.02)
        assert explanation.title.startswith(f"random at {ratio}: ")
        assert explanation.subtitle.endswith(" · compression_rounding=round")
        assert explanation.subtitle.startswith(INTERRUPTION.name) and explanation.title in repr(figure)
    others = {"processor": family.processor, "num_frames": 4, "compare_with": [{"compression_method": "evs"}]}
    ours, evs = vidcom2.explain(INTERRUPTION, family.model, compression_window=2, **others).ways
    assert ours.settings["compression_window"] == 2 and "compression_window" not in evs.settings
    assert family.model.config.retention_ratio == 0.25
    for given in ({"compare_with": [{"retention_rate": 0.1}]}, {"retention_rate": 0.1}):
        with pytest.raises(ValueError, match="retention_rate"):
            vidcom2.explain(INTERRUPTION, family.model, processor=family.processor, **given)


def test_the_subtitle_says_when_a_family_joins_frames_and_when_a_method_gives_no_scores() -> None:
    explanation = explained(5, video_frames=9)
    assert "9 frames of the video" in explanation.subtitle and "a picture stands for 2 frames" in explanation.subtitle
    assert [explanation.label(i) for i in (0, 3, 4)] == ["frames 0–1", "frames 6–7", "frame 8"]
    assert "stands for" not in explained(5).subtitle and explained(5).label(3) == "frame 3"
    bare = explained(2, frame_uniqueness=None, token_uniqueness=None)
    assert "this method scores neither frames nor tokens" in bare.subtitle


@only(lambda family: family.name in ("llava_video", "qwen2_5_vl"))
def test_the_explanation_has_the_groups_that_the_tower_computes(family: Family) -> None:
    """Compared ways share them. LLaVA-Video's tower has 7 × 7 patches, of which the tokens cover 6 × 6."""
    settings = {"vision_method": "skip_repeated", "vision_tolerance": 0.05}
    model, video = family.load(retention_ratio=0.25, **settings), read_video(str(INTERRUPTION), 8)
    ways = {"compare_with": [{"compression_method": "evs"}], "processor": family.processor}
    explanation, other = vidcom2.explain(video, model, **ways).ways
    described = family.videos_of(prepare_inputs(family.processor, "", video))
    (computed,) = model.model.partial_encoding(settings=CompressionSettings(**settings), **described).computed
    grid = (7, 7) if family.case.name == "llava_video" else family.case.grid
    assert explanation.computed.tolist() == computed.view(-1, *grid).tolist() == other.computed.tolist()
    assert explanation.shares_of_patches() == pytest.approx(computed.float().mean(dim=1).tolist())
    assert f"the vision tower computed {computed.float().mean():.1%} of the patches" in explanation.subtitle
    assert 0.05 < computed.float().mean() < 0.95
    assert explanation.tower_covered == (0, 0, 1, 1)
    whole = explained_by(family, video)
    assert whole.computed is None and "computed" not in whole.subtitle


def test_each_stretch_of_a_long_video_is_shown_by_its_frame_with_the_largest_budget() -> None:
    explanation = explained(100)
    k, starts = explanation.frame_budgets, [0, 7, 14, 21, *range(28, 101, 6)]  # 100 = 4 · 7 + 12 · 6
    stretches = [range(start, stop) for start, stop in itertools.pairwise(starts)]
    chosen = explanation.chosen_frames(16).tolist()
    assert chosen == [max(stretch, key=lambda t: (k[t], -t)) for stretch in stretches]
    assert explained(3).chosen_frames(3).tolist() == [0, 1, 2]


# -- pictures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "covered"), [(LANDSCAPE, (0, 0, 1, 1)), (PORTRAIT, (0, 0, 6 / 7, 6 / 7)), (LANDSCAPE, (0, 0.13, 0.9, 0.7))]
)
def test_each_pixel_shows_whether_its_token_was_kept(size: tuple[int, int], covered: tuple) -> None:
    explanation = explained(2, size, covered=covered)
    assert LIGHT * (1 - DIMMED) >= 140  # a dropped token is never dark
    picture, frame = explanation.kept_picture(1), explanation.frames[1].astype(float)
    outlines = 0
    for y in range(size[0]):
        for x in range(size[1]):
            token, pixel = token_of_pixel(explanation, y, x), picture[y, x]
            if token is None:
                assert pixel.tolist() == [NOT_COVERED] * 3
            elif not explanation.kept[1][token]:
                grey = 0.299 * frame[y, x, 0] + 0.587 * frame[y, x, 1] + 0.114 * frame[y, x, 2]
                assert np.allclose(pixel, DIMMED * grey + (1 - DIMMED) * LIGHT, atol=1)
            elif pixel.tolist() != frame[y, x].tolist():
                assert tuple(pixel) == OUTLINE_COLOR
                near = [token_of_pixel(explanation, y + dy, x + dx) for dy in (-3, 0, 3) for dx in (-3, 0, 3)]
                assert any(t is not None and not explanation.kept[1][t] for t in near) or covered != (0, 0, 1, 1)
                outlines += 1
    assert outlines
    explanation.kept[0] = True
    assert covered != (0, 0, 1, 1) or np.array_equal(explanation.kept_picture(0), explanation.frames[0])


def test_each_pixel_shows_whether_the_tower_computed_its_patch() -> None:
    """The patches reach further than the tokens, and neither reaches the edge."""
    computed, covered = some_computed(2), (0, 0, 0.9, 0.95)
    explanation = explained(2, computed=computed, covered=(0, 0, 0.8, 0.8), tower_covered=covered)
    patches = explained(2, kept=computed, covered=covered)  # as if they were tokens
    for pixel, as_token in zip(explanation.computed_picture(1), patches.kept_picture(1)):
        is_outline = (as_token == OUTLINE_COLOR).all(axis=-1)
        assert (pixel[is_outline] == COMPUTED_COLOR).all() and (pixel[~is_outline] == as_token[~is_outline]).all()
    is_edge = (explanation.computed_picture(0) == NOT_COVERED).all(axis=-1)  # 0.9 · 54 = 48.6, and 0.95 · 96 = 91.2
    assert not is_edge[:49, :91].any() and is_edge[49:].all() and is_edge[:, 91:].all()


def test_the_heat_map_gets_lighter_with_uniqueness_and_marks_non_finite_tokens() -> None:
    u = np.linspace(-1.0, -0.1, 12).reshape(1, 3, 4)
    u[0, 2, 3] = -np.inf
    heat = explained(1, token_uniqueness=u, kept=np.zeros((1, 3, 4), dtype=bool)).heat_map(0).astype(float)
    middles = heat[9::18, 12::24].reshape(12, 3)
    lightness = middles @ [0.299, 0.587, 0.114]
    assert (np.diff(lightness[:11]) > 0).all() and lightness[0] < 10 and lightness[10] > 230
    assert middles[11].min() == middles[11].max()  # grey, unlike any colour of the map


def test_heat_maps_have_one_scale_so_that_the_noise_of_an_even_frame_stays_dark() -> None:
    """The scale's ends are printed beside it, in the picture and in the page."""
    u = np.linspace(-1.5, -0.25, 12).reshape(1, 3, 4).repeat(2, axis=0)
    u[0] = -1.5 + np.random.default_rng(0).uniform(0, 1e-3, (3, 4))
    explanation = explained(2, token_uniqueness=u, kept=np.zeros((2, 3, 4), dtype=bool))
    even, varied = (explanation.heat_map(i).astype(int) for i in (0, 1))
    assert np.ptp(even, axis=(0, 1)).max() <= 3 and np.ptp(varied, axis=(0, 1)).max() > 200
    texts = " ".join(text.get_text() for text in drawing(explanation).texts)
    legend = re.sub("<[^>]*>", " ", page_html([explanation, explained(2, token_uniqueness=u + 1)]))
    assert "tokens' u: −1.5 −0.25 in all frames" in texts
    assert "in all frames: −1.5 −0.25" in " ".join(legend.split())
    assert "in all frames: −0.5 0.75" in " ".join(legend.split())  # each compared way has its own


def test_a_video_whose_tokens_differ_by_float_noise_alone_is_of_one_colour() -> None:
    u = -1.0 + np.random.default_rng(0).uniform(0, 1e-7, (2, 3, 4))
    heat = explained(2, token_uniqueness=u, kept=np.zeros((2, 3, 4), dtype=bool)).heat_map(0)
    assert len(np.unique(heat.reshape(-1, 3), axis=0)) == 1


@pytest.mark.filterwarnings("error::RuntimeWarning")  # a division by zero would warn
@pytest.mark.parametrize("value", [-0.5, -np.inf])
def test_equal_and_non_finite_scores_can_be_drawn(value: float, tmp_path: Path) -> None:
    same = explained(3, token_uniqueness=np.full((3, 3, 4), value), frame_uniqueness=np.full(3, value))
    assert np.isfinite(same.shares_of_uniqueness()).all()
    Figure((same,)).save(tmp_path / "same.png")
    assert not re.search("NaN|nan%|Infinity", re.sub('base64,[^"]+', "", page_html([same])))


# -- the figure -------------------------------------------------------------------------------------------------------


def test_a_figure_shows_itself_in_a_notebook_and_overwrites_only_its_own_files(tmp_path: Path) -> None:
    one, two = Figure((explained(2),)), Figure((explained(2), explained(2, model="<b>another</b>")))
    assert [figure._repr_html_().count('src="data:image/png;base64,') for figure in (one, two)] == [1, 2]
    for name, figure in (("x.png", one), ("x.html", two)):
        figure.save(tmp_path / name)
        figure.save(tmp_path / name)
        (tmp_path / name).write_bytes(b"the user's")
        with pytest.raises(ValueError, match="not overwritten"):
            figure.save(tmp_path / name)
        assert (tmp_path / name).read_bytes() == b"the user's"
    for figure, name in ((one, "x.gif"), (one, "no/folder/x.png"), (two, "two.png")):
        with pytest.raises(ValueError, match=Path(name).name):
            figure.save(tmp_path / name)


# -- PNG --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_frames", "size", "scores"),
    [(1, PORTRAIT, True), (3, LANDSCAPE, False), (8, LANDSCAPE, True), (64, PORTRAIT, True), (64, LANDSCAPE, False)],
)
def test_a_png_keeps_proportions_and_no_text_is_clipped_or_overlaps_another(
    num_frames: int, size: tuple[int, int], scores: bool
) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    changes = {"frame_uniqueness": None, "token_uniqueness": None}
    if scores:
        changes = {"computed": some_computed(num_frames)}
    name = "an-organisation/a-model-with-a-rather-long-name-of-its-own-32-frames-and-what-not"
    explanation = explained(num_frames, size, model=name, video_frames=2 * num_frames, **changes)
    figure = drawing(explanation)
    FigureCanvasAgg(figure).draw()
    width, height = figure.canvas.get_width_height()
    texts = [*figure.texts, *figure.legends[0].get_texts()]
    for axes in figure.axes:
        texts += [axes.title, *axes.texts, *(axes.axison * (axes.get_xticklabels() + axes.get_yticklabels()))]
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts if text.get_text()]
    assert len(boxes) >= 2 * min(num_frames, CHOSEN_FRAMES)
    for text, box in boxes:
        assert min(box.x0, box.y0) >= 0 and box.x1 <= width and box.y1 <= height, text
    for i, (text, box) in enumerate(boxes):
        for other, another in boxes[i + 1 :]:
            apart = box.x1 <= another.x0 + 1 or another.x1 <= box.x0 + 1 or box.y1 <= another.y0 + 1
            assert apart or another.y1 <= box.y0 + 1, (text, other)
    across, up = figure.get_size_inches()
    for box in (axes.get_position() for axes in figure.axes if axes.get_title()):
        assert box.width * across / (box.height * up) == pytest.approx(size[1] / size[0])


def test_a_png_of_a_long_video_has_a_strip_of_all_frames_above_the_drawn_ones() -> None:
    explanation = explained(MOST_FRAMES + 1)
    axes = drawing(explanation).axes
    strips = [one for one in axes if len(one.patches) == MOST_FRAMES + 1]
    assert len(strips) == 2
    for strip, shares in zip(strips, (explanation.shares_of_uniqueness(), explanation.shares_of_budget())):
        heights = {round(bar.get_x() + bar.get_width() / 2): bar.get_height() for bar in strip.patches}
        assert [heights[i] for i in range(MOST_FRAMES + 1)] == pytest.approx(shares.tolist())
    pictures = [one for one in axes if one.images and one.get_title()]
    assert [one.get_title().split("\n")[0] for one in pictures] == [
        f"frame {i}" for i in explanation.chosen_frames(CHOSEN_FRAMES)
    ]
    short = drawing(explained(MOST_FRAMES)).axes
    assert sum(bool(one.images and one.get_title()) for one in short) == MOST_FRAMES


# -- HTML -------------------------------------------------------------------------------------------------------------


def values(page: str, tag: str, name: str) -> list[str]:
    """Find the values of an attribute in a page."""
    return re.findall(rf'<{tag}\b[^>]* {name}="([^"]*)"', page)


def data(page: str, name: str) -> Any:
    """Read the data of a page's script."""
    return json.loads(re.findall(rf'id="{name}">(.*?)</script>', page)[0])


def test_a_page_shows_every_frame_in_three_ways_loads_nothing_and_escapes_names() -> None:
    page = page_html([explained(40, model="<b>&models</b>")])
    sources = values(page, "img", "src")
    assert len(sources) == 120 and all(re.match("data:image/(jpeg|png);base64,", source) for source in sources)
    ids = set(values(page, "figure", "id"))
    assert len(ids) == 40 and {link.removeprefix("#") for link in values(page, "a", "href")} == ids  # the strip's links
    assert not re.search(r"(?:src|href)=\"(?!data:|#)|url\(|@import|https?://", page)
    assert "&lt;b&gt;&amp;models" in page and "<b>" not in page


def test_frames_of_a_method_without_scores_stay_when_a_page_shows_scores() -> None:
    scored, unscored = explained(3), explained(3, token_uniqueness=None)
    page = page_html([scored, unscored])
    whole, shown = (re.findall(f'class="{kind}" alt="" src="([^"]+)"', page) for kind in ("whole", "heat-map"))
    is_whole = [picture == other for picture, other in zip(shown, whole, strict=True)]
    assert sorted(is_whole) == [False] * 3 + [True] * 3


def test_a_page_holds_the_numbers_of_each_token() -> None:
    explanation = explained(3, covered=(0, 0.25, 1, 0.5))
    explanation.token_uniqueness[1, 0, 2] = -np.inf
    page = page_html([explanation])
    assert data(page, "grid") == {"rows": 3, "columns": 4, "covered": [0, 0.25, 1, 0.5]}
    for frame, told in enumerate(data(page, "tokens")):
        assert told["kept"] == explanation.kept[frame].ravel().tolist()
        u = [value if value is not None else -np.inf for value in told["u"]]
        assert u == pytest.approx(explanation.token_uniqueness[frame].ravel().tolist(), abs=1e-4)


def test_bars_of_compared_ways_have_one_scale() -> None:
    few, many = explained(2, frame_budgets=np.array([1, 2])), explained(2, frame_budgets=np.array([8, 4]))
    bars = re.findall(r'class="bar k"><i style="width: ([\d.]+)%"', page_html([few, many]))
    assert list(map(float, bars)) == [12.5, 100.0, 25.0, 50.0]  # a frame's two ways stand beside each other


@pytest.mark.parametrize("size", [LANDSCAPE, PORTRAIT, (4, 3), (9, 4)])
@pytest.mark.parametrize("ways", [2, 3])
def test_compared_frames_are_no_wider_than_landscape_ones_would_be_high(size: tuple[int, int], ways: int) -> None:
    """In every window, wide or narrow. The ways of a frame stay beside each other in a wide one."""
    height, width = size
    page = page_html([explained(2, size)] * ways)
    wide, narrow = map(int, re.findall(r"main\.compare \{ grid-template-columns: repeat\((\d+),", page))
    assert wide % ways == 0
    for columns, of_landscape in ((wide, ways), (narrow, 1)):
        assert 1 / columns <= min(1, width / height) / of_landscape  # as shares of the window
    assert width < height or (wide, narrow) == (ways, 1)


def test_a_method_without_scores_is_drawn_without_them() -> None:
    bare = explained(2, frame_uniqueness=None, token_uniqueness=None)
    page = page_html([bare])
    assert len(values(page, "img", "src")) == 4
    assert "uniqueness" not in page.partition("<body>")[2].partition("<script")[0]
    assert all("u" not in told for told in data(page, "tokens"))
    titled = [one for one in drawing(bare).axes if one.images]
    assert len(titled) == 2  # only frames, without heat maps and their scale


def test_the_page_says_of_scores_what_their_methods_say_and_nothing_else() -> None:
    silent, said = explained(2), explained(2, scores="u counts <apples>.")
    named = explained(2, scores="u_t counts pears.", settings={"retention_ratio": 0.5, "compression_method": "pears"})
    assert (silent.frame_uniqueness < 0).all()  # which does not make it the paper's
    assert "<details" not in page_html([silent]) and "mean of" not in page_html([silent])
    page = page_html([silent, said, named, named])
    assert re.findall(r"<p>(\w+): (.*)</p>", page.partition("<details>")[2].partition("</details>")[0]) == [
        ("vidcom2", "u counts &lt;apples&gt;."),
        ("pears", "u_t counts pears."),
    ]


def test_no_drawing_calls_scores_uniqueness_unless_the_method_does() -> None:
    """Those of V-CAST are curvatures, and a user's may be anything."""
    words = "u_t says how sharply the path of the frames' means turns at a frame."
    for scores in (None, words):
        page = page_html([explained(2, scores=scores)])
        shown = re.sub("<[^>]*>", " ", page.partition("<body>")[2].partition("<script")[0])
        assert "uniq" not in shown.lower() and "score u" in shown and (words in html.unescape(shown)) == bool(scores)
        figure = drawing(explained(2, scores=scores))
        texts = [text.get_text() for text in figure.findobj(Text)]
        assert "$u_t$" in " ".join(texts) and "uniq" not in " ".join(texts).lower()
    of_paper = page_html([explained(2, scores=COMPRESSION_METHODS["vidcom2"].scores)])
    assert "the higher, the more unique" in of_paper
    _, help_text, _ = command("explain", "--help")
    assert "uniq" not in help_text.lower()


@pytest.mark.usefixtures("methods_restored")
def test_an_explanation_holds_what_the_method_says_of_its_scores(checkpoint: Checkpoint) -> None:
    @vidcom2.register_score_method("apples", scores="u counts apples.")
    def apples(video: vidcom2.VideoTokens) -> torch.Tensor:
        return video.tokens.float().mean(dim=-1)

    @vidcom2.register_score_method("pears")
    def pears(video: vidcom2.VideoTokens) -> torch.Tensor:
        return video.tokens.float().mean(dim=-1)

    video = Video.from_frames(np.random.default_rng(0).integers(0, 256, (4, 64, 96, 3), dtype=np.uint8), fps=2)
    methods = ("vidcom2", "vcast", "evs", "dycoke", "coverage", "random", "apples", "pears")
    settings = {"vidcom2": {}, "dycoke": {"retention_ratio": 0.5}}
    ways = [{"compression_method": name, **settings.get(name, {})} for name in methods]
    said = dict(zip(methods, [each.scores for each in compare(checkpoint, video, ways)], strict=True))
    assert [said[name] for name in ("coverage", "random", "apples", "pears")] == [None, None, "u counts apples.", None]
    assert "video's mean" in said["vidcom2"] and "turns" in said["vcast"] and "frame before" in said["evs"]
    assert not any("video's mean" in str(said[name]) for name in methods[1:])
    with pytest.raises(ValueError, match="`scores` of method 'plums' is a int, but must be a text about them"):
        vidcom2.register_score_method("plums", scores=3)


def test_what_the_tower_computed_has_a_picture_and_a_bar_for_each_frame() -> None:
    explanation, plain = explained(3, computed=some_computed(3)), explained(3)
    shares = explanation.computed.reshape(3, -1).sum(axis=1) / 49
    page = page_html([explanation, plain])
    shown = re.findall(r'class="bar tower"><i style="width: ([\d.]+)%"></i><span>patches computed ([\d.]+)%', page)
    assert shown == [(f"{100 * share:.1f}",) * 2 for share in shares]
    assert values(page, "img", "class").count("computed-picture") == 6  # a frame that was computed whole is drawn whole
    assert "show-computed" in values(page, "input", "id") and "% of the patches" in page
    assert not re.search("computed|tower", page_html([plain]))
    axes = drawing(explanation).axes
    numbers = [text.get_text() for each in axes for text in each.texts]
    assert numbers[-3:] == [f"{share:.1%}" for share in shares]
    assert len([each for each in axes if each.images]) == 1 + 3 * 3  # with the scale of u
