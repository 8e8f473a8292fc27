"""Ask about the present and the past of long streams, and compare what live videos with different memories answer.

    python -m benchmarks.needle.streams WORK_FOLDER --toy qwen3_vl

A stream shows four digits for two frames each: now (in the last four frames), recently (12 to 48 frames ago), in the
middle and at the beginning. All memories hold the same number of tokens but for the last four frames alone. A run that
was killed continues with the stream after the last one in WORK_FOLDER.
"""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.progress import track
from torch import Tensor

from vidcom2.evaluation.report import paired_interval
from vidcom2.live.live_video import LiveVideo
from vidcom2.live.stream_memory import ScoredFrame, StreamTokens, register_memory_method
from vidcom2.loading.checkpoints import Checkpoint, load_checkpoint
from vidcom2.modeling.prompt.calls import VIDEO
from vidcom2.toys import PREFIX, TOY, TOYS

from .architectures import ARCHITECTURES, Architecture
from .compare import MAX_NEW_TOKENS, RESULTS, certificate, rounded
from .drawing import COLOURS, DIGIT_SIZE
from .videos import OF_STREAM, STREAMS, Event, free_place, make_needle

WHEN = ("now", "recent", "middle", "far")
TOKENS_PER_FRAME = 25
BUDGET = 16 * TOKENS_PER_FRAME
SECONDS = 120.0  # of each stream: the toy of Qwen3-VL has learnt no times beyond two minutes
OURS = "coverage"
BUSIEST = [*STREAMS][-1]
LAST_FOUR = "the last four frames alone"
CHUNK = 64  # frames that are encoded at once
TENTHS = ("second_tenth", "last_tenth")  # of a long stream

# ---------------------------------------------------------------------------------------------------------------------
# Other memories
# ---------------------------------------------------------------------------------------------------------------------


@register_memory_method("whole frames, evenly")
def whole_frames(stream: StreamTokens, number: int) -> Tensor:
    """Keep every 2^k-th frame. k grows when there is no room for them."""
    every = 1
    while -(-stream.num_frames // every) * stream.tokens_per_frame > number:
        every *= 2
    return (stream.frames % every == 0).nonzero().flatten()


@register_memory_method("random tokens")
def random_tokens(stream: StreamTokens, number: int) -> Tensor:
    """Keep each token of the past with the same probability: those with the least of random keys that stay theirs."""
    token = stream.frames * stream.tokens_per_frame + stream.places
    keys = (token * 2654435761 + 12345) % 2**32  # multiplicative hashing
    keys = (keys ^ (keys >> 16)) * 2246822519 % 2**32
    return keys.argsort(stable=True)[:number].sort().values


@register_memory_method("running VidCom²")
def running_vidcom2(stream: StreamTokens, number: int) -> Tensor:
    """Keep what is least like the mean of its frame and the mean of the stream until now (the paper's Eqs. 7 and 8)."""
    like_stream = torch.cosine_similarity(stream.tokens.float(), stream.mean[None], dim=1)
    return (-stream.likeness - like_stream).argsort(descending=True, stable=True)[:number].sort().values


MEMORIES = (
    OURS,
    LAST_FOUR,
    "the last frames, as many tokens",
    "whole frames, evenly",
    "random tokens",
    "running VidCom²",
)


def options_of(memory: str, frames_together: int) -> dict[str, Any]:
    """Return how a live video gets this memory, in a family where so many frames share their tokens."""
    if memory == LAST_FOUR:
        return {"max_video_tokens": 4 // frames_together * TOKENS_PER_FRAME}
    if memory == "the last frames, as many tokens":
        return {"max_video_tokens": BUDGET, "recent_frames": BUDGET // TOKENS_PER_FRAME * frames_together}
    return {"max_video_tokens": BUDGET, "memory_method": memory}


# ---------------------------------------------------------------------------------------------------------------------
# Streams
# ---------------------------------------------------------------------------------------------------------------------


def make_stream(seed: int, number: int, kind: str, num_frames: int) -> tuple[np.ndarray, list[tuple[str, str, str]]]:
    """Return the frames of a stream, and what is asked: when it was, the question and the answer."""
    rng = np.random.default_rng((77, seed, number))
    middle = num_frames // 8, 3 * num_frames // 8
    starts = (
        num_frames - 4 + 2 * int(rng.integers(2)),
        num_frames - 2 * int(rng.integers(6, 25)),
        2 * int(rng.integers(*middle)),
        2 * int(rng.integers(0, 12)),
    )
    events: list[Event] = []
    for start, colour in zip(starts, rng.permutation(list(COLOURS))):
        place = None
        while place is None:
            place = free_place(rng, DIGIT_SIZE[0], events)
        events.append(Event(str(rng.integers(10)), str(colour), DIGIT_SIZE[0], *place, start, start + 2))
    seeds = (78, seed, number, [*STREAMS].index(kind))
    frames = make_needle(seeds, f"{OF_STREAM}{kind}", num_frames, "test", events).frames
    asked = []
    for when, event in zip(WHEN, events):
        asked.append((when, f"What is the {event.colour} digit?", event.shown))
        if event.quarter is not None:
            asked.append((when, f"Where is the {event.colour} digit?", event.quarter))
    return frames, asked


class EncodedStream(LiveVideo):
    """A live video of a stream that was encoded once for all memories."""

    recent_share = 1.0  # the last frames may be all that is remembered
    encoded: Tensor  # (groups, L, M, D)
    rate: float

    def _encoded(self, shown: Sequence[tuple[np.ndarray, float]]) -> ScoredFrame:
        if not hasattr(self, "_newline"):
            super()._encoded(shown)
        seconds = tuple(second for _, second in shown)
        levels = self.encoded[round(seconds[0] * self.rate) // self.frames_together]
        return ScoredFrame(tuple(levels), seconds)


@torch.no_grad()
def encoded(architecture: Architecture, model: Any, frames: np.ndarray) -> Tensor:
    """Return the features (groups, L, M, D) of frames."""
    groups = torch.from_numpy(frames).unflatten(0, (-1, architecture.frames_per_group))
    return torch.cat([architecture.features(model, chunk) for chunk in groups.split(CHUNK)])


def marks_in(checkpoint: Checkpoint, ids: Tensor) -> int:
    """Return how many tokens of a prompt stand between a video's tokens, and say when these were shown."""
    is_video = (checkpoint.model.model.kinds(ids)[0] == VIDEO).nonzero().flatten()
    return int(is_video[-1] - is_video[0]) + 1 - len(is_video)


def row_of(checkpoint: Checkpoint, toy: str, kind: str, num_frames: int, seed: int, number: int) -> dict[str, Any]:
    """Return what each memory answers about a stream."""
    frames, asked = make_stream(seed, number, kind, num_frames)
    features, rate = encoded(ARCHITECTURES[toy], checkpoint.model, frames), num_frames / SECONDS
    row: dict[str, Any] = {"kind": kind, "frames": num_frames, "seed": seed, "number": number}
    row |= {"asked": asked, "answers": {}, "virtual_frames": {}, "tokens": {}, "mark_tokens": {}}
    for name in MEMORIES:
        options = options_of(name, ARCHITECTURES[toy].frames_per_group)
        live = EncodedStream(checkpoint.model, checkpoint.processor, **options)
        live.encoded, live.rate = features, rate
        for place, frame in enumerate(frames):
            live.add(frame, place / rate)
        watched = live.watched().prefill()
        answers = watched.ask([question for _, question, _ in asked], max_new_tokens=MAX_NEW_TOKENS)
        row["answers"][name] = [answer.strip() for answer in answers]
        compression = watched.features.video_compressions[0]
        row["virtual_frames"][name], row["tokens"][name] = len(compression.frame_budgets), len(compression.indices)
        row["mark_tokens"][name] = marks_in(checkpoint, watched.inputs("?")["input_ids"])
    return row


# ---------------------------------------------------------------------------------------------------------------------
# Figures
# ---------------------------------------------------------------------------------------------------------------------


def figures(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what each memory answers right, for each kind and length of stream, and for all but the busiest kind."""
    usual = [row for row in rows if row["kind"] != BUSIEST]
    groups: dict[tuple[str, int | None], list[dict[str, Any]]] = {("usual", None): usual} if usual else {}
    for row in rows:
        groups.setdefault((row["kind"], row["frames"]), []).append(row)
    return [
        {"kind": kind, "frames": length, "memory": memory, "streams": len(chosen)} | shares(chosen, memory)
        for (kind, length), chosen in groups.items()
        for memory in MEMORIES
    ]


def shares(rows: Sequence[dict[str, Any]], memory: str) -> dict[str, Any]:
    """Return the share of right answers of a memory about each time, and how much better ours is, with the paired 95 %
    interval over streams; and how many tokens and virtual frames it has, on average."""
    found: dict[str, Any] = {}
    for what in ("tokens", "virtual_frames", "mark_tokens"):
        found[what] = round(sum(row[what][memory] for row in rows) / len(rows), 2)
    for when in WHEN:
        asked = [
            (number, row["answers"][memory][place] == answer, row["answers"][OURS][place] == answer)
            for number, row in enumerate(rows)
            for place, (then, _, answer) in enumerate(row["asked"])
            if then == when
        ]
        better = [ours - right for _, right, ours in asked]
        low, high = paired_interval(better, [number for number, *_ in asked]) or (None, None)
        found[when] = {
            "accuracy": sum(right for _, right, _ in asked) / len(asked),
            "questions": len(asked),
            "difference": sum(better) / len(asked),
            "difference_low": low,
            "difference_high": high,
        }
    return found


def growth(checkpoint: Checkpoint, num_frames: int = 10_000) -> dict[str, Any]:
    """Return what a frame costs in the second and in the last tenth of a long stream: seconds, medians, and bytes that
    the live video holds. The tenths take turns, in a live video each, since a machine is not as fast all the time."""
    frames, _ = make_stream(0, 0, "busy, 5 %", 512)
    tenth = num_frames // 10
    lives = {name: LiveVideo(checkpoint.model, checkpoint.processor, max_video_tokens=BUDGET) for name in TENTHS}

    def add(live: LiveVideo) -> float:
        start = time.perf_counter()
        live.add(frames[live.num_frames % len(frames)], live.num_frames / 4)
        return time.perf_counter() - start

    for each, before in zip(lives.values(), (tenth, num_frames - tenth), strict=True):
        for _ in range(before):
            add(each)
    seconds: dict[str, list[float]] = {name: [] for name in TENTHS}
    sizes: dict[str, int] = dict.fromkeys(TENTHS, 0)
    for _ in range(tenth // lives[TENTHS[0]].frames_together):
        for name, live in lives.items():
            together = [add(live) for _ in range(live.frames_together)]  # of which only the last is encoded
            seconds[name].append(sum(together) / len(together))
            sizes[name] = max(sizes[name], bytes_of(live))
    found = {f"milliseconds_{name}": round(1000 * float(np.median(seconds[name])), 3) for name in TENTHS}
    return {"frames": num_frames} | found | {f"bytes_{name}": sizes[name] for name in TENTHS}


def bytes_of(live: LiveVideo) -> int:
    """Return how many bytes of tensors and frames a live video holds."""
    held = [
        *vars(live._memory).values(),
        *live._memory.features,
        *(level for each in live._recent for level in each.features),
    ]
    tensors = sum(each.untyped_storage().nbytes() for each in held if isinstance(each, Tensor))
    return tensors + sum(frame.nbytes for frame, _ in live._waiting)


def main(
    work: Annotated[Path, typer.Argument(help="Folder for the answers.")],
    toy: Annotated[str, typer.Option(help=f"One of {', '.join(ARCHITECTURES)}.")] = TOY.name,
    frames: Annotated[list[int] | None, typer.Option(help="Lengths of streams.")] = None,
    kind: Annotated[list[str] | None, typer.Option(help=f"Some of {', '.join(STREAMS)}.")] = None,
    seeds: int = 3,
    streams: Annotated[int, typer.Option(help="Streams of each kind, length and seed.")] = 20,
    long: Annotated[bool, typer.Option(help="Measure a stream of 10,000 frames too.")] = True,
) -> None:
    """Compare the memories of live videos with a toy."""
    checkpoint = load_checkpoint(f"{PREFIX}{toy}", device="cpu")
    checkpoint.model.config.retention_ratio = 1.0  # streams are encoded whole
    torch.set_num_threads(1)
    certified = certificate(checkpoint, TOYS[toy], f"streams WORK --toy {toy}", max_video_tokens=BUDGET)
    work.mkdir(parents=True, exist_ok=True)
    file = work / f"{toy}.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    done = {(row["kind"], row["frames"], row["seed"], row["number"]) for row in rows}
    wanted = [
        (each, length, seed, number)
        for length in frames or (512, 2048)
        for seed in range(seeds)
        for number in range(streams)
        for each in kind or STREAMS
    ]
    for which in track([each for each in wanted if each not in done]):
        rows.append(row_of(checkpoint, toy, *which))
        with file.open("a") as answers:
            answers.write(json.dumps(rows[-1]) + "\n")
    found = [rounded(row) for row in figures(rows)]
    content = {
        "group": "streams",
        "toy": toy,
        "questions": sum(len(row["asked"]) for row in rows),
        "videos": len(rows),
        "birth_certificate": certified,
        "rows": found,
    }
    content |= {"long_stream": growth(checkpoint)} if long else {}
    (RESULTS / toy / "streams.json").write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    for row in found:
        print(row["kind"], row["frames"], row["memory"], *(f"{row[when]['accuracy']:.1%}" for when in WHEN), sep="\t")
    print(content.get("long_stream"))


if __name__ == "__main__":
    typer.run(main)
