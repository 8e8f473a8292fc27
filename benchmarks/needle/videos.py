"""Seeded videos with short, local events, and questions about them.

A video consists of a few scenes of drifting, noisy, muted texture. Handwritten digits in bright colours appear in it
for one or two frames each. A white ball may cross it, and a dark shape may be there all the time. The level says what
makes it hard.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .digits import draw_digit
from .drawing import (
    BACKGROUNDS,
    CANVAS,
    COLOURS,
    DIGIT_SIZE,
    INKS,
    LARGE_DIGIT_SIZE,
    NOISE,
    NUMBER_DIGIT_SIZE,
    PATCH_SIZE,
    SHAPE_SIZE,
    SHAPES,
    SIZE,
    TOKEN_SIZE,
    paint,
    paint_ball,
    paint_scribble,
    shape_ink,
    texture,
    window,
)

HALVES = ("first", "second")
JITTER = 2  # pixels that a digit may be off the middle of a patch
DRIFT = 0.5  # pixels per frame


@dataclass(frozen=True)
class Level:
    """The properties that make a video hard.

    Attributes:
        scenes: least and most scenes.
        clutter: least and most scribbles in a busy frame.
        busy: the share of frames that are busy.
        large: the share of digits that cover many tokens.
        together: whether the events share a frame.
        moment: whether an event lasts only one frame.
        camera: pixels that the camera moves per frame, at most.
        events: least and most events.
        digits: how many digits an event shows side by side, each in a token of its own.
        asks: the kinds of questions that the test set asks about its videos; empty for all.
    """

    scenes: tuple[int, int] = (1, 4)
    clutter: tuple[int, int] = (0, 0)
    busy: float = 0.0
    large: float = 0.0
    together: bool = False
    moment: bool = False
    camera: float = DRIFT
    events: tuple[int, int] = (1, 3)
    digits: int = 1
    asks: tuple[str, ...] = ()


BURST, STILL = "burst", "still"
LEVELS = {
    "plain": Level(),
    "clutter": Level(clutter=(3, 6), busy=1.0),
    "mixed": Level(clutter=(8, 14), busy=0.5, large=0.3),
    "crowded": Level(clutter=(2, 4), busy=0.5, large=0.6, together=True),
    "camera": Level(scenes=(1, 2), camera=20.0),
    "cuts": Level(scenes=(10, 16)),
    "named": Level(events=(3, 5), asks=("named digit",)),
    "numbers": Level(events=(1, 2), digits=3, asks=("number", "named number")),
}
# The models are not trained on these levels. In `burst` everything to count is in one frame, and all other frames look
# alike, so the number of tokens that this frame gets decides. In `still` the camera is fixed, and no scene drifts.
ALL_LEVELS = LEVELS | {
    BURST: Level(scenes=(1, 1), together=True, moment=True, asks=("count",)),
    STILL: Level(camera=0.0),
}
# The kinds of streams of `streams.py`, by how busy they are.
STREAMS = {
    "fixed camera": Level(scenes=(1, 1), camera=0.0),
    "cuts": Level(scenes=(16, 24)),
    "busy, 5 %": Level(scenes=(16, 24), clutter=(3, 6), busy=0.05),
    "busy, 50 %": Level(scenes=(16, 24), clutter=(3, 6), busy=0.5),
}
OF_STREAM = "stream, "  # begins the names of their levels, since a level of the test set has the name of a kind
ALL_LEVELS |= {f"{OF_STREAM}{kind}": level for kind, level in STREAMS.items()}
SEEDS = {name: seed for seed, name in enumerate(("plain", "clutter", "mixed", "crowded", "camera", "cuts", BURST))}
SEEDS |= {name: seed for seed, name in enumerate(("named", "numbers", STILL), start=len(SEEDS))}


@dataclass(frozen=True)
class Event:
    """A digit, or a number of several, that is shown for a moment, from frame `start` until before frame `end`.

    Attributes:
        shown: its digits, from left to right.
        size: pixels per side of a digit. The digits of a number are a token apart.
    """

    shown: str
    colour: str
    size: int
    top: int
    left: int
    start: int
    end: int

    @property
    def tokens(self) -> set[tuple[int, int]]:
        """The row and column of each token that shows a part of it."""
        rows, columns = (
            range(first // TOKEN_SIZE, (first + length - 1) // TOKEN_SIZE + 1)
            for first, length in ((self.top, self.size), (self.left, self.width))
        )
        return {(row, column) for row in rows for column in columns}

    @property
    def width(self) -> int:
        return (len(self.shown) - 1) * TOKEN_SIZE + self.size

    @property
    def centre(self) -> tuple[float, float]:
        return self.top + self.size / 2, self.left + self.width / 2

    @property
    def quarter(self) -> str | None:
        """The quarter of the frame that it is in, such as "top left"; None if it is too near the middle to say."""
        row, column = self.centre
        if min(abs(row - SIZE / 2), abs(column - SIZE / 2)) <= SIZE / 14:
            return None
        return f"{'top' if row < SIZE / 2 else 'bottom'} {'left' if column < SIZE / 2 else 'right'}"

    @property
    def kind(self) -> str:
        return "digit" if len(self.shown) == 1 else "number"


@dataclass(frozen=True)
class Question:
    kind: str
    question: str
    answer: str
    choices: tuple[str, ...]


@dataclass
class Needle:
    """One video, and the truth about it.

    Attributes:
        frames: (T, 140, 140, 3) uint8.
        events: the digits.
        scenes: the background of each scene, and the frame at which it starts.
        shape: the shape that is there all the time, or None.
        ball: the direction in which a ball goes, or None.
    """

    level: str
    frames: NDArray[np.uint8]
    events: list[Event]
    scenes: list[tuple[str, int]]
    shape: str | None
    ball: str | None

    @property
    def num_frames(self) -> int:
        return len(self.frames)


def make_needle(
    seed: int | tuple[int, ...],
    level: str = "plain",
    num_frames: int = 16,
    split: str = "train",
    events: list[Event] | None = None,
) -> Needle:
    """Make a video. The same arguments give the same video.

    Args:
        seed: the seed of all that is random.
        level: a name in `ALL_LEVELS`.
        split: the split of the digits, `"train"` or `"test"`.
        events: the digits; by default, as many as the level says, at random.
    """
    rng, how = np.random.default_rng(seed), ALL_LEVELS[level]
    scenes = _scenes(rng, how, num_frames)
    frames = _textures(rng, how, scenes, num_frames)
    busy = rng.random(num_frames) < how.busy
    events = _events(rng, how, num_frames) if events is None else events
    shape = str(rng.choice(SHAPES)) if rng.random() < 0.4 else None
    ball = str(rng.choice(["left", "right"])) if num_frames > 1 and rng.random() < 0.3 else None

    for t in np.flatnonzero(busy):
        for _ in range(rng.integers(how.clutter[0], how.clutter[1] + 1)):
            paint_scribble(rng, frames[t], split)
    needle = Needle(level, frames, events, scenes, shape, ball)
    if shape:
        place = tuple(int(v) for v in rng.integers(0, SIZE - SHAPE_SIZE, size=2))
        for frame in frames:
            paint(frame, shape_ink(shape), *place, INKS["black"])
    if ball:
        for frame, (row, column) in zip(frames, _ball_places(rng, ball, num_frames)):
            paint_ball(frame, row, column)
    for event in events:
        for place, digit in enumerate(event.shown):
            ink = draw_digit(rng, int(digit), event.size, split)
            for frame in frames[event.start : event.end]:
                paint(frame, ink, event.top, event.left + place * TOKEN_SIZE, COLOURS[event.colour])
    noise = rng.standard_normal((SIZE, SIZE, 3), dtype=np.float32) * NOISE
    for frame in frames:
        shift = rng.integers(0, SIZE, size=2)
        frame += np.roll(noise, shift, axis=(0, 1)) * rng.choice([-1, 1])
    needle.frames = np.clip(frames, 0, 255).astype(np.uint8)
    return needle


def questions_about(needle: Needle) -> list[Question]:
    """Return all questions that have a clear answer. A question about one of several events names its colour, and its
    kind says so."""
    asked, events, num_frames = [], needle.events, needle.num_frames
    several = len(events) > 1
    name = "named " if several else ""
    noun = events[0].kind if events else ""

    def ask(kind: str, question: str, answer: object, choices: tuple[object, ...] | list) -> None:
        asked.append(Question(kind, question, str(answer), tuple(map(str, choices))))

    for event in events:
        which = f"the {event.colour} {noun}" if several else f"the {noun}"
        ask(f"{name}{noun}", f"What is {which}?", event.shown, range(10) if noun == "digit" else ())
        if event.quarter is not None:
            places = [f"{v} {h}" for v in ("top", "bottom") for h in ("left", "right")]
            ask(f"{name}where", f"Where is {which}?", event.quarter, places)
        middle = num_frames / 2
        if num_frames > 1 and (event.end <= middle - 1 or event.start >= middle + 1):
            ask(f"{name}half", f"In which half is {which}?", HALVES[event.start >= middle], HALVES)
    if len(events) == 1:
        ask("colour", f"Which colour is the {noun}?", events[0].colour, list(COLOURS))
    if num_frames > 1:
        ask("count", f"How many {noun}s are there?", len(events), range(1, 4) if len(events) < 4 else range(1, 6))
        starts = sorted(event.start for event in events)
        if several and starts[1] > starts[0]:
            first = min(events, key=lambda event: event.start)
            ask("first", "Which colour comes first?", first.colour, list(COLOURS))
        if len(needle.scenes) <= 4:
            ask("scenes", "How many scenes are there?", len(needle.scenes), range(1, 5))
        times = background_times(needle)
        ranked = sorted(times.values(), reverse=True)
        if len(ranked) == 1 or ranked[0] - ranked[1] >= max(2, num_frames // 8):
            ask(
                "background", "Which background is shown longest?", max(times, key=times.__getitem__), list(BACKGROUNDS)
            )
    if needle.shape:
        ask("shape", "Which shape is always there?", needle.shape, SHAPES)
    if needle.ball:
        ask("ball", "Which way does the ball go?", needle.ball, ("left", "right"))
    return asked


def background_times(needle: Needle) -> dict[str, int]:
    """Return background -> number of frames that show it."""
    times: dict[str, int] = {}
    for name, start, end in _spans(needle.scenes, needle.num_frames):
        times[name] = times.get(name, 0) + end - start
    return times


def _spans(scenes: list[tuple[str, int]], num_frames: int) -> list[tuple[str, int, int]]:
    """Return the background of each scene, its first frame, and the frame after its last."""
    ends = [*(start for _, start in scenes[1:]), num_frames]
    return [(name, start, end) for (name, start), end in zip(scenes, ends)]


def _scenes(rng: np.random.Generator, how: Level, num_frames: int) -> list[tuple[str, int]]:
    most = max(1, num_frames // 4) if how.scenes[1] <= 4 else num_frames
    number = int(rng.integers(min(how.scenes[0], most), min(how.scenes[1], most) + 1))
    starts = [0]
    if number > 1:
        shortest = 2 if number <= num_frames // 4 else 1
        later = np.sort(rng.integers(0, num_frames - number * shortest + 1, size=number - 1))
        starts += [int(extra) + shortest * i for i, extra in enumerate(later, start=1)]
    names: list[str] = []
    for _ in starts:
        names.append(str(rng.choice([name for name in BACKGROUNDS if name != (names or [""])[-1]])))
    return list(zip(names, starts))


def _textures(
    rng: np.random.Generator, how: Level, scenes: list[tuple[str, int]], num_frames: int
) -> NDArray[np.float32]:
    """Return (T, 140, 140, 3), the moving scenes."""
    frames = np.empty((num_frames, SIZE, SIZE, 3), np.float32)
    for name, start, end in _spans(scenes, num_frames):
        canvas = texture(rng, BACKGROUNDS[name])
        place = rng.uniform(0, CANVAS, size=2)
        if how.camera > DRIFT:
            speed = rng.uniform(-how.camera, how.camera, size=2)
        else:
            angle = rng.uniform(0, 2 * np.pi)
            speed = how.camera * np.array([np.sin(angle), np.cos(angle)])
        for t in range(start, end):
            frames[t] = window(canvas, *place)
            place = place + speed + (rng.uniform(-how.camera / 4, how.camera / 4, size=2) if how.camera > DRIFT else 0)
    return frames


def _events(rng: np.random.Generator, how: Level, num_frames: int) -> list[Event]:
    """Choose some events of different colours, each in its own place and, unless `together`, its own frames."""
    number = 1
    if num_frames > 1 or how.together or how.events[0] > 1:
        number = int(rng.integers(how.events[0], how.events[1] + 1))
    colours = rng.permutation(list(COLOURS))
    slots = rng.permutation(num_frames // 2)[:number] * 2 if num_frames > 1 else np.zeros(number, int)
    if how.together:
        slots = np.full(number, slots[0])
    events: list[Event] = []
    for slot, colour in zip(slots, colours):
        taken = events if how.together or num_frames == 1 else []
        if how.digits > 1:
            size = int(rng.integers(*NUMBER_DIGIT_SIZE))
            place = free_row(rng, size, how.digits, taken)
        else:
            size = int(rng.integers(*(LARGE_DIGIT_SIZE if rng.random() < how.large else DIGIT_SIZE)))
            place = free_place(rng, size, taken)
        if place is None:
            continue
        length = min(int(rng.integers(1, 3)), num_frames, 1 if how.moment else 2)
        start = int(slot) + (int(rng.integers(0, 2)) if length == 1 and num_frames > 1 and not how.together else 0)
        shown = "".join(str(rng.integers(10)) for _ in range(how.digits))
        events.append(Event(shown, str(colour), size, *place, start, start + length))
    return events


def free_row(rng: np.random.Generator, size: int, digits: int, taken: list[Event]) -> tuple[int, int] | None:
    """Choose the top and left of a number such that each of its digits is near the middle of a token and no other event
    is in its tokens. Return None if there is no room."""
    for _ in range(20):
        row, column = rng.integers(SIZE // TOKEN_SIZE), rng.integers(SIZE // TOKEN_SIZE - digits + 1)
        inside = (TOKEN_SIZE - size) // 2
        top, left = (int(v) for v in TOKEN_SIZE * np.array([row, column]) + inside + rng.integers(-1, 2, size=2))
        new = Event("0" * digits, "", size, top, left, 0, 0)
        if not any(new.tokens & event.tokens for event in taken):
            return top, left
    return None


def free_place(rng: np.random.Generator, size: int, taken: list[Event]) -> tuple[int, int] | None:
    """Choose the top and left of a digit near the middle of a patch, or of four patches for a large digit, such that no
    other digit is in its tokens. Return None if there is no room. The middle is needed because a tower of three layers
    cannot read digits that lie across patches at random."""
    step = 0.5 if size <= DIGIT_SIZE[1] else 1.0
    for _ in range(20):
        corner = rng.integers(SIZE // PATCH_SIZE - (step > 0.5), size=2)
        centre = PATCH_SIZE * (corner + step) + rng.uniform(-JITTER, JITTER, size=2)
        top, left = (int(v) for v in np.clip(np.round(centre - size / 2), 0, SIZE - size))
        new = Event("0", "", size, top, left, 0, 0)
        if not any(new.tokens & event.tokens for event in taken):
            return top, left
    return None


def _ball_places(rng: np.random.Generator, way: str, num_frames: int) -> list[tuple[float, float]]:
    columns = np.linspace(rng.uniform(12, 50), rng.uniform(SIZE - 50, SIZE - 12), num_frames)
    rows = np.linspace(*rng.uniform(20, SIZE - 20, size=2), num_frames)
    return list(zip(rows, columns if way == "right" else columns[::-1]))
