"""`vidcom2 run` and `vidcom2 explain` as a user types them."""

import http.server
import io
import json
import re
import shutil
import subprocess
import sys
import threading
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Family, change_json
from make_clips import INTERRUPTION, write_clip
from PIL import Image
from rich.console import Console
from typer.testing import CliRunner

from vidcom2.asking.generation import STAGES
from vidcom2.cli.app import COMMANDS, HELP, app
from vidcom2.cli.console import print_table, status
from vidcom2.cli.verdicts import verdict_of_bench, verdict_of_eval
from vidcom2.configuration.compression_settings import CompressionSettings
from vidcom2.errors import OptionError
from vidcom2.families.table import FAMILIES
from vidcom2.loading.checkpoints import Checkpoint, load_checkpoint
from vidcom2.measuring.figures import figures
from vidcom2.measuring.results import write_results
from vidcom2.presets import RECOMMENDED
from vidcom2.toys import TOY

ROOT = Path(__file__).parents[1]
FAST = ["--num-frames", "6", "--max-new-tokens", "2", "--repeats", "1"]
SECONDS = [i / 5 for i in range(12)]  # of the frames of a clip


def vidcom2(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def shown_by(*arguments: object) -> str:
    """Run a command that must succeed, and return what it prints."""
    code, shown, error = vidcom2(*arguments)
    assert code == 0, shown + error
    return shown


def told_by(*arguments: object) -> Any:
    """Run a command that must succeed, and return the JSON that it prints."""
    return json.loads(shown_by(*arguments, "--json"))


def mistake(*arguments: object) -> str:
    """Run a command with a mistake in it, and return the one line that it prints."""
    code, shown, error = vidcom2(*arguments)
    lines = [line for line in error.splitlines() if line.startswith("Error: ")]
    assert (code, shown, len(lines)) == (2, "", 1) and error.rstrip().endswith(lines[0]), (code, shown, error)
    return lines[0]


# -- run --------------------------------------------------------------------------------------------------------------


def test_run_without_arguments_answers_truly_and_says_that_it_is_a_demo() -> None:
    code, shown, error = vidcom2("run", "--repeats", 1)
    assert (code, error) == (0, "Loading the toy ...\n")  # nothing that turns or moves, since this is no terminal
    assert "Demo" in shown and "is a toy" in shown and "clip that comes with vidcom2" in " ".join(shown.split())
    for part in ("prompt tokens", "video tokens", "prefill, seconds", "generate, seconds", "k_t"):
        assert part in shown
    clip = TOY.clips[0]
    said = dict(re.findall(r"^(?:Answer of )?(Prompt|Truth|[\w.,= ]+?)(?: \([^)]*\)\n|  +)(.+)$", shown, re.M))
    assert (said["Prompt"], said["Truth"]) == (clip.question, clip.answer)
    assert said["all tokens"] == said["vidcom2 at 0.25"] == clip.answer != said["uniform_frames"]
    verdict = r"vidcom2 at 25 %: same right answer, 4\.0× fewer video tokens, prefill \d+\.\d× (faster|slower)"
    assert re.search(f" {verdict}$", " ".join(shown.split()))


def test_run_names_the_method_its_settings_and_the_frames_that_answered() -> None:
    _, shown, _ = vidcom2("run", "--recommended", "--repeats", 1)
    assert re.search(r"^Method  coverage at 0\.25, compression_positions=original$", shown, re.M)
    assert re.search(r"^Frames  16$", shown, re.M)
    assert "coverage at 25 %: same right answer, " in " ".join(shown.split())
    assert "coverage at" in shown.partition("┏")[2].partition("┡")[0]  # a column of the table
    error = mistake("run", "--recommended", "--compression-method", "evs")
    assert "`--recommended` is a method" in error and "`--compression-method` is 'evs'" in error


def test_the_verdict_of_the_demo_says_whether_the_answers_are_right() -> None:
    _, shown, _ = vidcom2("run", "--num-frames", 1, "--retention-ratio", 1.0, "--repeats", 1)
    said = dict(re.findall(r"^(Truth|Answer of .+?)(?: \(.*\)\n|  +)(.+)$", shown, re.M))
    assert said["Answer of all tokens"] == said["Answer of vidcom2 at 1"] != said["Truth"]  # the frame is no digit's
    assert "vidcom2 at 100 %: same wrong answer, " in " ".join(shown.split())


@pytest.mark.parametrize("model", ["toy:llava_onevision", "toy:qwen3_vl"])
def test_every_command_counts_the_same_tokens_of_the_same_frames(model: str, tmp_path: Path) -> None:
    shown = shown_by("run", "--model", model, "--repeats", 1, "--max-new-tokens", 1)
    assert f"is a toy {'LLaVA-OneVision' if 'llava' in model else 'Qwen3-VL'}" in shown
    counts, kept, whole, share = re.findall(r"Kept: ((\d+) of (\d+) video tokens) \((\S+%)\)", " ".join(shown.split()))[
        0
    ]
    assert share == f"{int(kept) / int(whole):.1%}"
    (frames,) = re.findall(r"^Frames  (\d+)$", shown, re.M)
    explained = " ".join(shown_by("explain", "--model", model, "-o", tmp_path / "x.html").split())
    assert f": {counts} stay" in explained and f", {frames} frames " in explained
    watched = shown_by("watch", "--model", model, "-o", tmp_path / "x.watched")
    assert f"Kept {counts} of {frames} frames, vidcom2 at 0.25" in watched
    assert f"x.watched --model {model}\n" in watched


def test_run_compares_with_another_method(folder: Path) -> None:
    run = told_by("run", "--model", folder, "--against", "random", *FAST)
    assert run["other_method"] == "random" and run["other"]["video_tokens"] == run["compressed"]["video_tokens"]


def test_the_table_of_run_fits_into_eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("console", "comparison_table"):
        monkeypatch.setattr(f"vidcom2.cli.{module}.out", Console(width=80))
    _, shown, _ = vidcom2("run", *FAST)
    assert "vidcom2 at 0.25 │" in shown.replace("┃", "│") and max(map(len, shown.splitlines())) <= 80
    tokens = re.search(r"│ video tokens +│ +(\d+) │ +(\d+) │ +(\d+) │", shown)
    assert tokens and int(tokens[2]) == int(tokens[3]) < int(tokens[1])  # as many of the other method


def test_the_output_of_run_fits_into_forty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("console", "comparison_table", "loading"):
        monkeypatch.setattr(f"vidcom2.cli.{module}.out", Console(width=40))
    _, shown, _ = vidcom2("run", *FAST, "--against", "random")
    assert max(map(len, shown.splitlines())) <= 40
    assert re.search(
        r"^prompt tokens\n  all tokens: \d+\n  vidcom2 at 0\.25: \d+\n  random: \d+\n  ratio: ", shown, re.M
    )


WIDE = ["method", "model generation, s", "agreement, %", "peak memory, GB", "compression, % of LLM"]


@pytest.mark.parametrize("width", [120, 70])
def test_headings_break_between_words(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr("vidcom2.cli.console.out", Console(width=width))
    print_table([WIDE, ["vidcom2 (released)", "0.42 (−38.8\xa0%)", "100.0 [43.9, 100.0]", "1.08", "0.6"]])
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= width
    for word in " ".join(WIDE).split():
        assert word in shown, shown
    assert "(−38.8\xa0%)" in shown and "[43.9, 100.0]" in shown


@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits_into_sixty_columns_and_breaks_no_word(name: str) -> None:
    shown, wide = (CliRunner().invoke(app, [name, "--help-all"], terminal_width=width).stdout for width in (58, 300))
    assert max(map(len, shown.splitlines())) <= 60 and "…" not in shown and "--import MODULE" in shown
    assert shown.split() == wide.split() and "None (" not in shown  # which nobody can type


@pytest.mark.parametrize("name", HELP)
def test_the_short_help_has_the_usual_options_and_examples_and_says_how_to_see_the_rest(name: str) -> None:
    shown = CliRunner().invoke(app, [name, "--help"], terminal_width=80).stdout
    assert len(shown.splitlines()) <= 34 and shown.count(f"  vidcom2 {name} ") >= 1 and "--help-all" in shown
    usual, examples = HELP[name]
    assert len(usual) == 5 and len(examples) == 2
    for option in usual:
        assert re.search(f"--{option.replace('_', '-')}\\b", shown), option
    everything = CliRunner().invoke(app, [name, "--help-all"], terminal_width=80).stdout
    assert set(re.findall(r"--[\w-]+", shown)) < set(re.findall(r"--[\w-]+", everything))


def test_names_of_python_and_files_are_answered_with_the_command() -> None:
    names = {"ask": "vidcom2 run", "count-tokens": "vidcom2 count", "clip.mp4": "vidcom2 run clip.mp4"}
    for name, command in names.items():
        code, _, error = vidcom2(name, "clip.mp4")
        assert code == 2 and f"No such command '{name}'" in error and command in error
    assert "vidcom2 run" not in vidcom2("runn")[2]


def test_the_video_is_positional_and_its_option_and_short_names_of_settings_work_too() -> None:
    options = ["--frames", 4, "--ratio", 0.5, "--method", "evs", "--repeats", 1, "--max-new-tokens", 1]
    clip, runs = TOY.clips[1].path, []
    for named in ([clip, *options], ["--video", clip, *options], [*options, f"--video={clip}"]):
        runs.append(told_by("run", *named))
        timeless = {"prompt", "model", "settings", "frame_budgets", "num_frames", "full_video_tokens"}
        assert {name: runs[-1][name] for name in timeless} == {name: runs[0][name] for name in timeless}
    assert runs[0]["num_frames"] == 4
    assert runs[0]["changed_settings"] == {"retention_ratio": 0.5, "compression_method": "evs"}
    for named, message in (
        ([clip, "--video", clip], "unexpected extra argument"),
        (["--prompt", "What?", "--video"], "must follow it"),
        (["--ratio", 7], "`--ratio` is 7.0"),
        (["--max-video-tokens", 0], "must be a whole number of video tokens >= 1."),
        (["--model", "toy:qwen3vl"], "toy:qwen3_vl_subsets. Did you mean 'qwen3_vl'?"),
    ):
        code, _, error = vidcom2("run", *named)
        assert code == 2 and message in " ".join(error.split())


@pytest.mark.parametrize(("command", "ending"), [("watch", ".watched"), ("explain", ".png")])
def test_what_a_command_writes_has_a_free_name_after_the_video_and_overwrites_nothing(
    command: str, ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    clip = shutil.copy(TOY.clips[0].path, "a clip.mp4")
    for _ in range(2):
        assert vidcom2(command, clip, "--frames", 2)[0] == 0
    assert {path.name for path in tmp_path.iterdir()} == {clip, f"a clip{ending}", f"a clip-2{ending}"}
    before = Path(f"a clip{ending}").read_bytes()
    assert "nothing is overwritten" in mistake(command, clip, "--frames", 2, "-o", f"a clip{ending}")
    assert Path(f"a clip{ending}").read_bytes() == before


@pytest.mark.parametrize(("no_color", "is_terminal"), [(True, True), (False, False), (False, True)])
def test_a_spinner_turns_only_where_colours_are(
    no_color: bool, is_terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = io.StringIO()
    terminal = Console(file=written, force_terminal=is_terminal, no_color=no_color, width=80)
    monkeypatch.setattr("vidcom2.cli.console.err", terminal)
    with status("Importing"):
        pass
    assert ("Importing" in written.getvalue()) == (is_terminal and not no_color)


def test_eval_says_when_stopped_that_the_same_command_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("vidcom2.evaluation.evaluate.evaluate", stopped)
    (tmp_path / "q.jsonl").write_text(json.dumps({"video": str(TOY.clips[0].path), "question": "What?"}))
    code, shown, _ = vidcom2("eval", "--data", tmp_path / "q.jsonl", "-o", tmp_path / "out")
    assert code == 130 and "The same command continues" in shown


# -- verdicts ---------------------------------------------------------------------------------------------------------


def eval_result(method: str, ratio: float, accuracy: float | None, agreement: float, videos: int) -> dict:
    shares = {"accuracy": accuracy, "agreement": agreement}
    return {"method": method, "retention_ratio": ratio, "accuracy_videos": videos, "agreement_videos": videos, **shares}


def test_the_verdict_of_eval_names_the_best_methods_of_each_ratio() -> None:
    results = [
        eval_result("all tokens", 1.0, 0.9, 1.0, 100),
        eval_result("random", 0.25, 0.6, 0.6, 100),
        eval_result("vidcom2", 0.25, 0.85, 0.9, 100),
        eval_result("evs", 0.25, 0.85, 0.8, 100),
        eval_result("vidcom2", 0.1, 0.7, 0.75, 100),
        eval_result("dycoke", 0.1, 1.0, 1.0, 90) | {"refused": "10 of 100 questions, the first: why"},
    ]
    assert verdict_of_eval(results) == (
        "Most right answers: vidcom2 and evs at 25 % with 85.0 %, vidcom2 at 10 % with 70.0 %; all tokens have 90.0 %"
    )
    few = [each | {"accuracy": None, "agreement_videos": 3} for each in results[:5]]
    assert verdict_of_eval(few) == (
        "Most answers as with all tokens: vidcom2 at 25 % with 90.0 %, vidcom2 at 10 % with 75.0 %. 3 videos tell "
        "little: see the intervals"
    )
    ties = [*results[:1], *(eval_result(name, 0.25, 0.8, 0.8, 100) for name in ("random", "vidcom2", "evs", "vcast"))]
    assert str(verdict_of_eval(ties)).startswith("Most right answers: random and 3 others at 25 % with 80.0 %;")
    assert verdict_of_eval(results[:1]) is None
    none = [each | {"accuracy": 0.0} for each in results[:2]]
    assert verdict_of_eval(none) == "No right answers by any method at any ratio; all tokens have 0.0 %"


def test_the_caution_of_eval_counts_videos_with_right_answers() -> None:
    """Of 100 videos one has a right answer: whatever the many questions about it say, it is one."""
    results = [
        eval_result("all tokens", 1.0, 0.9, 1.0, 100) | {"accuracy_videos": 1},
        eval_result("random", 0.25, 0.6, 0.6, 100) | {"accuracy_videos": 1},
    ]
    assert str(verdict_of_eval(results)).endswith(". 1 video says nothing about others: there is no interval")


def bench_turn(seconds: float, video_tokens: int) -> dict:
    stages = dict.fromkeys(STAGES, 0.0) | {"prefill": seconds, "decode": 1.0}
    about = {"prompt_tokens": 10, "video_tokens": video_tokens, "kept_share": 0.25, "peak_bytes": None}
    return {"seconds": stages, "step_seconds": [0.1], "end_to_end_seconds": seconds + 2, **about}


def bench_row(method: str, ratio: float, frames: int, tokens: int, *seconds: float) -> dict:
    settings = {"compression_method": method, "retention_ratio": ratio}
    row = {"method": method, "retention_ratio": ratio, "num_frames": frames, "batch_size": 1, "settings": settings}
    turns = [bench_turn(each, tokens) for each in seconds]
    return row | {"attn_implementation": "sdpa", "turns": turns, "failed": None}


def test_the_verdict_of_bench_is_of_the_last_setup() -> None:
    """All tokens take as long as the round lets them. Within the rounds VidCom² is 5, 4 and 2 times as fast, which the
    quotient of the medians, 10 / 2, does not tell."""
    rows = figures(
        [
            bench_row("all tokens", 1.0, 8, 400, 4.0),
            bench_row("vidcom2", 0.25, 8, 100, 1.0),
            bench_row("all tokens", 1.0, 16, 800, 10.0, 16.0, 4.0),
            bench_row("random", 0.25, 16, 200, 1.0, 1.0, 1.0),
            bench_row("vidcom2", 0.25, 16, 200, 2.0, 4.0, 2.0),
            bench_row("vidcom2", 0.25, 32, 400),
        ]
    )
    assert verdict_of_bench(rows) == (
        "25 %, 16 frames, vidcom2: 4.0× fewer video tokens, prefill 4.0× faster (2.0 to 5.0), end to end 3.0× faster "
        "(1.5 to 3.0); medians of 3 rounds"
    )
    assert verdict_of_bench(rows[:2]) == (
        "25 %, 8 frames, vidcom2: 4.0× fewer video tokens, prefill 4.0× faster, end to end 2.0× faster; one round"
    )
    assert verdict_of_bench(rows[:1]) is None and verdict_of_bench([rows[-1]]) is None
    slower = figures([bench_row("all tokens", 1.0, 8, 400, 2.0, 4.0), bench_row("random", 0.5, 8, 200, 4.0, 5.0)])
    assert "prefill 1.6× slower (1.2 to 2.0)" in str(verdict_of_bench(slower))


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    """Return the JSON of a run of the toy."""
    return told_by("run", "--num-frames", 8, "--max-new-tokens", 3, "--retention-ratio", 0.5, "--repeats", 1)


def test_the_json_of_run_holds_consistent_figures(told: dict[str, Any]) -> None:
    run, full, short = told, told["uncompressed"], told["compressed"]
    assert full["video_tokens"] == 8 * run["tokens_per_frame"] + 1
    assert short["video_tokens"] == sum(run["frame_budgets"]) + 1
    assert full["prompt_tokens"] - short["prompt_tokens"] == full["video_tokens"] - short["video_tokens"]
    assert run["kept_share"] == pytest.approx(sum(run["frame_budgets"]) / (8 * run["tokens_per_frame"]))
    assert len(run["frame_budgets"]) == len(run["frame_seconds"]) == len(run["frame_uniqueness"]) == 8
    for measured in (full, short):
        assert 0 < measured["prefill_seconds"] < measured["total_seconds"] and 1 <= measured["new_tokens"] <= 3
    assert run["retention_ratio"] == 0.5 and {"torch", "transformers", "device"} <= run["environment"].keys()


def test_an_interruption_gets_the_largest_budgets(folder: Path) -> None:
    arguments = ["--model", folder, "--video", INTERRUPTION]
    run = told_by("run", *arguments, "--num-frames", 32, "--max-new-tokens", 1, "--repeats", 1)
    flash = {i for i, second in enumerate(run["frame_seconds"]) if 5.0 <= second < 5.5}
    largest = max(run["frame_budgets"])
    assert flash and {i for i, budget in enumerate(run["frame_budgets"]) if budget == largest} == flash
    assert run["other"] is None  # another method runs beside a toy alone, unless it is asked for


def test_run_takes_a_checkpoint_a_video_and_a_prompt(family: Family, tmp_path: Path) -> None:
    video = write_clip(tmp_path / "v.mp4", SECONDS)
    arguments = ["--model", family.folder, "--video", video, "--prompt", "Grey [or] what?", "--dtype", "bfloat16"]
    shown = shown_by("run", *arguments, "--attn-implementation", "eager", "--device", "cpu", *FAST)
    assert "Grey [or] what?" in shown and str(family.folder)[:20] in shown and "bfloat16" in shown
    assert "Demo" not in shown


def test_a_video_may_be_a_url(tmp_path: Path) -> None:
    write_clip(tmp_path / "v.mp4", SECONDS)
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        run = told_by("run", "--video", f"http://127.0.0.1:{server.server_port}/v.mp4", *FAST)
        server.shutdown()
    assert len(run["frame_budgets"]) == 6


def keys_in_docs(heading: str) -> set[str]:
    """The keys in the first column of the table with this heading in docs/command_line.md."""
    page = (ROOT / "docs" / "command_line.md").read_text(encoding="utf-8")
    rows = page.split(f"| {heading} | value |")[1].split("\n\n")[0].splitlines()[2:]
    return {key for row in rows for key in re.findall(r"`(\w+)`", row.split("|")[1])}


def test_the_keys_of_json_are_those_of_the_docs(told: dict[str, Any], tmp_path: Path) -> None:
    for side in ("compressed", "uncompressed", "other"):
        assert keys_in_docs("key of a side") == told[side].keys()
    write_results(tmp_path / "a.json", "Time", {"device": "cpu"}, [], complete=True)
    for heading, found in {
        "key": told,
        "key of a count": told_by("count", "--frames", 8),
        "key of the report": told_by("env"),
        "key of a result file": json.loads((tmp_path / "a.json").read_text()),
    }.items():
        assert keys_in_docs(heading) == found.keys() and found["schema"] == 1


def test_env_says_what_is_installed_and_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    version = metadata.version

    def fake(name: str) -> str:
        if name == "accelerate":
            raise metadata.PackageNotFoundError
        return version(name)

    monkeypatch.setattr("importlib.metadata.version", fake)
    shown = shown_by("env")
    assert f"transformers    {version('transformers')}" in shown and "FFmpeg" in shown
    assert re.search(r"not installed, and what needs them:\n(.+\n)*accelerate +--device-map\n", shown)
    assert re.search(r"device +(cpu|cuda|mps)", shown)


# -- settings and options ---------------------------------------------------------------------------------------------

SETTINGS = {
    "retention_ratio": 0.5,
    "compression_method": "random",
    "compression_scoring": "released",
    "compression_rounding": "ceil",
    "compression_temperature": 0.1,
    "compression_frame_score": "max",
    "compression_window": 2,
    "compression_positions": "original",
    "compression_frame_weight": 0.5,
    "compression_video_weight": 2.0,
    "max_video_tokens": 500,
    "vision_method": "skip_repeated",
    "vision_chunk_frames": 4,
    "vision_tolerance": 0.1,
}


def test_each_setting_is_an_option_of_run_and_explain(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []

    def stop(checkpoint: Checkpoint, *_: object) -> None:
        seen.append(checkpoint.model.config.as_dict())
        raise OptionError("seen")

    monkeypatch.setattr("vidcom2.asking.comparison.compare_answers", stop)
    monkeypatch.setattr("vidcom2.explaining.explanation.compare", stop)
    method = {"compression_method": "random"}  # which reads few of the others
    others = {name: value for name, value in SETTINGS.items() if name not in method}
    for settings in (method, others):
        options = [each for name, value in settings.items() for each in (f"--{name.replace('_', '-')}", value)]
        for command in ("run", "explain"):
            assert "seen" in mistake(command, *options, "--model", folder, "--num-frames", 2)
        assert seen[-1] == seen[-2] and seen[-1].items() >= settings.items()
    assert SETTINGS.keys() == seen[-1].keys()


@pytest.fixture
def folder_with_settings(folder: Path, tmp_path: Path) -> Path:
    """Return a checkpoint whose config holds settings that are not the defaults."""
    folder = Path(shutil.copytree(folder, tmp_path / "model"))
    change_json(folder / "config.json", retention_ratio=0.5, compression_window=4, compression_scoring="released")
    return folder


def test_settings_that_are_not_given_come_from_the_checkpoint(folder_with_settings: Path) -> None:
    run = told_by("run", "--model", folder_with_settings, "--compression-window", 3, *FAST)
    assert (run["retention_ratio"], run["settings"]["compression_window"]) == (0.5, 3)


@pytest.mark.parametrize("given", [{}, {"compression_positions": "consecutive"}], ids=str)
def test_the_recommended_settings_replace_those_of_the_checkpoint(
    folder_with_settings: Path, given: dict[str, str]
) -> None:
    options = [each for name, value in given.items() for each in (f"--{name.replace('_', '-')}", value)]
    run = told_by("run", "--model", folder_with_settings, "--recommended", *options, *FAST)
    settings: dict[str, Any] = {**RECOMMENDED, **given}
    expected = CompressionSettings(retention_ratio=0.5, **settings)
    assert run["retention_ratio"] == 0.5 and {**expected.as_dict(), **run["settings"]} == expected.as_dict()
    assert load_checkpoint(str(folder_with_settings), **settings).model.config.as_dict() == expected.as_dict()


def test_a_device_map_is_passed_to_transformers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("accelerate")
    model_class, given = FAMILIES["llava_onevision"].model_class, []
    load = model_class.from_pretrained
    monkeypatch.setattr(model_class, "from_pretrained", lambda *args, **kw: given.append(kw) or load(*args, **kw))
    monkeypatch.setattr(model_class, "to", lambda *_: pytest.fail("moved as a whole"))
    run = told_by("run", "--model", folder, "--device-map", "auto", *FAST)
    assert run["compressed"]["new_tokens"] >= 1 and given[0]["device_map"] == "auto"


def test_the_shell_completes_commands_and_options() -> None:
    for words, word, expected in (("vidcom2 ru", 1, "run"), ("vidcom2 run --no-b", 2, "--no-baseline")):
        environment = {"_VIDCOM2_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(word)}
        assert CliRunner().invoke(app, [], env=environment, prog_name="vidcom2").stdout.split() == [expected]


def test_python_m_vidcom2_runs_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "vidcom2", "--version"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout.startswith("vidcom2 ")


# -- explain ----------------------------------------------------------------------------------------------------------


def test_explain_draws_a_png(tmp_path: Path) -> None:
    shown = shown_by("explain", "--num-frames", 10, "-o", tmp_path / "out.png")
    assert "video tokens" in shown and "out.png" in shown
    image = np.asarray(Image.open(tmp_path / "out.png").convert("L"))
    assert image.shape[0] > 500 and image.shape[1] > 900 and image.std() > 30


def test_explain_compares_up_to_four_ways_on_a_page_that_needs_nothing_else(tmp_path: Path) -> None:
    given = ["explain", "--num-frames", 4, "-o", tmp_path / "out.html"]
    ways = [each for way in ("evs", "0.5", "random:0.75") for each in ("--compare", way)]
    ways_in_words = ["vidcom2 at 0.25", "evs at 0.25", "vidcom2 at 0.5", "random at 0.75"]
    assert re.findall(r"(\w+ at [\d.]+): ", shown_by(*given, *ways)) == ways_in_words
    page = (tmp_path / "out.html").read_text(encoding="utf-8")
    assert f"<title>{TOY.clips[0].path.name}: " in page and "random at 0.75" in page
    assert "data:image/" in page and not re.search(r"(?:src|href)=\"(?!data:|#)", page)
    for more, message in (
        (["--compare", "0.1"] * 4, "`--compare` is given 4 times, but a page shows 4 ways at most"),
        (["--compare", "evz"], "`--compare` is 'evz', .*Did you mean 'evs'"),
        (["--compare", "7"], "`--compare` is 7"),
        (["--compare", "evs", "-o", tmp_path / "out.png"], "out.png', but only a page compares"),
    ):
        assert re.search(message, mistake(*given, *more))
