"""Write the tables of `vidcom2 bench` into docs and README, and draw its plots, from the result files.

    python -m benchmarks.bench_tables

Each table stands between `<!-- bench: NAME -->` and `<!-- end -->`.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vidcom2.evaluation.accuracy_tables import pipes
from vidcom2.measuring.bench_plot import draw_over_frames, draw_over_ratios, draw_stages
from vidcom2.measuring.bench_tables import TITLES, efficiency_table, method_name, rounds, seconds, signed, stage_table
from vidcom2.measuring.figures import ALL_TOKENS, TOTALS
from vidcom2.measuring.results import read_results

from .pages import ROOT, write_tables

PAGES = ("README.md", "docs/benchmarks.md", "docs/vision_tower.md", "benchmarks/results/README.md")
FILES: dict[str, Path] = {
    name: ROOT / "benchmarks" / "results" / f"bench_{name}.json"
    for name in ("llava_onevision_0_5b", "quick", "frames", "ratios")
}
LECTURES: dict[str, Path] = {  # size of a model -> its answers about `python -m benchmarks.clips lecture`
    "LLaVA-OneVision-0.5B": ROOT / "benchmarks" / "results" / "bench_lecture_llava_onevision_0_5b.json",
    "Qwen3-VL-2B": ROOT / "benchmarks" / "results" / "bench_lecture_qwen3_vl_2b.json",
}
SHOWN = ("llava_onevision", "qwen2_vl", "qwen2_5_vl", "qwen3_vl")  # all are with the results
WAYS = {
    "anew": "by `ask`, each anew",
    "features": "from the features of a watched video",
    "cache": "from its KV cache",
}
PAPER = (  # LLaVA-OneVision-7B on an A100, of the paper's Tables 1 and 3: R, LLM and whole model saved, quality kept
    (0.25, 0.708, 0.430, "99.6 %"),
    (0.15, 0.791, None, "95.1 %"),
)
H200 = ROOT / "benchmarks" / "h200.json"  # the run of docs/benchmarks.md, "On a GPU"; its raw files were not kept
ON_CPU = "Qwen3-VL-2B", LECTURES["Qwen3-VL-2B"]  # README's row of a CPU: the size of a model, and its answers
README_TIMES = ("prefill", "model_generation", "end_to_end")  # README's times
PAPER_SECONDS = 618.0, 1008.4  # LLM generation and model generation with all tokens, of its Table 3


def headline(rows: list[dict[str, Any]]) -> str:
    """Make the table of how much each method saves at each ratio."""
    lines = [["", "video tokens", *(TITLES[name] for name in TOTALS), "compression alone"]]
    for row in rows:
        if row["method"] == ALL_TOKENS:
            lines.append(
                [
                    "all tokens",
                    f"{row['video_tokens']:,}",
                    *(f"{seconds(row['seconds'][name])} s" for name in TOTALS),
                    "",
                ]
            )
        elif row["saved"]:
            saved = (f"{signed(-100 * row['saved'][name])} %" for name in TOTALS)
            name = f"{method_name(row)}, R = {100 * row['retention_ratio']:g} %"
            lines.append([name, f"{row['video_tokens']:,}", *saved, f"{1000 * row['seconds']['compression']:.0f} ms"])
    return pipes(lines)


def h200() -> list[dict[str, Any]]:
    """Return what was read from the run on an H200."""
    return json.loads(H200.read_text(encoding="utf-8"))["rows"]


def first_number() -> str:
    """Make the sentence with which README begins: the first row of the H200."""
    row = h200()[0]
    before, after = row["prefill"]
    whole = " instead of ".join(f"{each:.2f}" for each in reversed(row["end_to_end"]))
    return (
        f"**{row['model']} reads the prompt of {row['frames']} frames {before / after:.1f}× as fast on an H200**, in "
        f"{1000 * after:.0f} ms instead of {1000 * before:.0f}, and the whole\nanswer takes {whole} s "
        "([one run](docs/benchmarks.md#on-a-gpu), random weights)."
    )


def answers() -> str:
    """Make the table of README: an answer with all tokens, and with a quarter of them by VidCom²."""
    lines = [["size, frames, on", "video tokens", "prefill", "model", "end to end", "peak, GB"]]
    for row in h200():
        if row["end_to_end"] is None and row["saved"]["end_to_end"] is None:  # docs/benchmarks.md has it
            continue
        spent = [_spent(row, name, unit="") for name in README_TIMES]
        short = "" if row["new_tokens"] == 16 else "*"
        first = f"{row['model']}, {row['frames']}{short}, H200"
        lines.append([first, _pair(row["video_tokens"], ","), *spent, _pair(row["peak_gb"], ".1f")])
    size, path = ON_CPU
    rows = read_results(path)[1]
    whole = next(row for row in rows if row["method"] == ALL_TOKENS)
    kept = next(row for row in rows if row["method"] == "vidcom2" and row["retention_ratio"] == 0.25)
    pairs = {name: [row["seconds"][name] for row in (whole, kept)] for name in kept["saved"]}
    tokens, memory = ([row[name] for row in (whole, kept)] for name in ("video_tokens", "peak_bytes"))
    spent = [_spent(pairs, name, unit="") for name in README_TIMES]
    peak = _pair([each / 1e9 for each in memory], ".1f")
    lines.append([f"{size}, {kept['num_frames']}, CPU", _pair(tokens, ","), *spent, peak])
    return f"{pipes(lines)}\n\n{reported()}\n{bounds()}"


def on_h200() -> str:
    """Make the table of docs/benchmarks.md: all that was read from the run on an H200."""
    lines = [["model, frames, new tokens", "prefill", *TITLES.values(), "peak, GB"]]
    for row in h200():
        spent = [_spent(row, name) for name in ("prefill", *TITLES)]
        first = f"{row['model']}, {row['frames']}, {row['new_tokens']}"
        lines.append([first, *spent, _pair(row["peak_gb"], ".1f")])
    return pipes(lines)


def _pair(values: Sequence[float] | None, form: str) -> str:
    return "–" if values is None else "→".join(f"{each:{form}}" for each in values)


def _spent(row: Mapping[str, Any], name: str, unit: str = " s") -> str:
    """Say how long a part takes with all tokens and with few, or what share was saved where only that is known."""
    pair = row[name]
    if pair is None:
        saved = row["saved"].get(name)
        return "–" if saved is None else f"{1 / (1 - saved):.1f}×" if not unit else f"−{100 * saved:.0f} %"
    times = row.get("prefill_times") if name == "prefill" else None  # read from the unrounded times
    return f"{'→'.join(seconds(each) for each in pair)}{unit} ({times or pair[0] / pair[1]:.1f}×)"


def reported() -> str:
    """Say in README what the paper reports."""
    told = " and ".join(f"{1 / (1 - saved):.1f}× as fast at {100 * ratio:g} %" for ratio, saved, *_ in PAPER)
    quality = " and ".join(each.removesuffix(" %") for *_, each in PAPER)
    return f"- **The paper**, of LLaVA-OneVision-7B on an A100: the LLM is {told}, with {quality} % of the accuracy."


def bounds() -> str:
    """Say in README what dropping tokens gives at least and at most, and how much faster a further question is.

    Where one part takes the share s of the time, the rest takes 1 - s, however little is left of that part.
    """
    least = min(h200(), key=lambda row: row["saved"]["model_generation"])
    times = 1 / (1 - least["saved"]["model_generation"])
    share = PAPER_SECONDS[0] / PAPER_SECONDS[1]
    later = {row["way"]: row["seconds_each_later"] for row in watch_results()["rows"]}
    anew, _, cache = (f"{later[way]:.2g}" if later[way] < 10 else f"{later[way]:.0f}" for way in WAYS)
    return (
        f"- **The whole model** gains from {times:.1f}× ({least['model']}, {least['frames']} frames, H200) to, at "
        f"most, {1 / (1 - share):.1f}× (the paper's 7B), because the tower sees all frames.\n"
        "- **A [second question](docs/benchmarks.md#several-questions-about-one-video)** about a watched video takes\n"
        f"  {cache} s from its KV cache instead of {anew} (0.5B, CPU)."
    )


def watch_results() -> dict[str, Any]:
    """Return what `benchmarks/benchmark_watch.py` measured."""
    return json.loads((ROOT / "benchmarks" / "results" / "watch_cpu.json").read_text())


def faster(saved: float) -> str:
    """Say how many times as fast something is that takes this share less time."""
    return f"{1 / (1 - saved):.1f}× ({signed(-100 * saved)} %)"


def origin(content: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """Say in a sentence where a file's figures come from."""
    made = content["birth_certificate"]
    return (
        f"`{made['command']}`: {made['parameters'] / 1e9:.2f}B parameters, {made['dtype']}, {made['device']}, "
        f"{made['date'][:10]}, {rounds(rows)}; torch {made['torch']}, transformers {made['transformers']}, vidcom2 "
        f"{made['vidcom2_commit'][:10]}; load average at the start {made['load_average']:.1f}."
    )


def lectures(models: dict[str, Path]) -> str:
    """Make the table of whole answers: all tokens, VidCom², and VidCom² with a tower that leaves out what repeats."""
    lines = [["size of", "", "vision, s", "prefill, s", "model generation, s", "", "peak memory, GB"]]
    for model, path in models.items():
        for row in read_results(path)[1]:
            name = "all tokens"
            if row["method"] != ALL_TOKENS:
                name = f"VidCom², R = {100 * row['retention_ratio']:g} %"
            if row["settings"].get("vision_method", "full") != "full":
                name += f" and `{row['settings']['vision_method']}`, {row['settings']['vision_tolerance']:g}"
            stages = [seconds(row["seconds"][stage]) for stage in ("vision", "prefill", "model_generation")]
            gain = faster(row["saved"]["model_generation"]) if row["saved"] else ""
            lines.append([model, name, *stages, gain, f"{row['peak_bytes'] / 1e9:.2f}"])
    return pipes(lines)


def watched() -> str:
    """Make the table of several questions about one video, by how they are answered."""
    found = watch_results()
    made, number = found["birth_certificate"], found["birth_certificate"]["questions"]
    lines = [["questions are answered", "before, s", "each later one, s", "", f"all {number}, s", "", "file, MB"]]
    for row in found["rows"]:
        times = [f"{row[name]:.1f}" for name in ("seconds_before", "seconds_each_later", "seconds_all")]
        gains = [f"{row[name]:.1f}×" for name in ("speedup_each_later", "speedup_all")]
        size = f"{row['file_bytes'] / 1e6:.1f}" if row["way"] == "features" else ""  # no file holds a KV cache
        lines.append([WAYS[row["way"]], times[0], times[1], gains[0], times[2], gains[1], size])
    whole = f"The features of all tokens would take {found['rows'][0]['file_bytes_of_all_tokens'] / 1e6:.1f} MB."
    origin = f"{made['date'][:10]}; torch {made['torch']}, transformers {made['transformers']}"
    return f"{pipes(lines)}\n\n{whole} {origin}, vidcom2 {made['vidcom2_commit'][:10]}, {made['torch_threads']} thread."


def asked() -> dict[str, Any]:
    """Return what `benchmarks/device_counts.py` counted."""
    return json.loads((ROOT / "benchmarks" / "results" / "device_counts.json").read_text())


def asked_by_stage(names: Sequence[str] | None = None) -> str:
    """Make the table of what a GPU is asked by these families, or all: kernels and waits, stock class → ours."""
    families = {name: counts for name, counts in asked()["families"].items() if names is None or name in names}
    stages = [stage for stage in next(iter(families.values()))["ours"] if stage != "selection"]
    lines = [["", *stages]]
    for name, counts in families.items():
        stock, ours = counts["stock"], counts["ours"]
        pairs = (
            " / ".join(_change(stock[stage][what], ours[stage][what]) for what in ("launches", "waits"))
            for stage in stages
        )
        lines.append([f"`{name}`", *pairs])
    return pipes(lines)


def _change(before: int, after: int) -> str:
    return f"{before:,}" if before == after else f"{before:,} → {after:,}"


def asked_by_method() -> str:
    """Make the table of what each method asks of a GPU."""
    lines = [["method", "kernels", "waits"]]
    for name, counts in asked()["methods"].items():
        lines.append([f"`{name}`", f"{counts['launches']:,}", f"{counts['waits']:,}"])
    return pipes(lines)


def blocks() -> dict[str, str]:
    """Return name -> text for all blocks of the pages."""
    made = {}
    for name, path in FILES.items():
        content, rows = read_results(path)
        made[f"{name}-efficiency"] = pipes(efficiency_table(rows))
        made[f"{name}-stages"] = pipes(stage_table(rows))
        made[f"{name}-headline"] = headline(rows)
        made[f"{name}-origin"] = origin(content, rows)
    made["h200-first"] = first_number()
    made["h200"] = on_h200()
    made["answers"] = answers()
    made["watched"] = watched()
    made["asked-by-stage"] = asked_by_stage()
    made["asked-by-stage-short"] = asked_by_stage(SHOWN)
    made["asked-by-method"] = asked_by_method()
    made["lectures"] = lectures(LECTURES)
    return made


def draw_plots(folder: Path) -> None:
    """Draw the plots of docs/benchmarks.md."""
    content, rows = read_results(FILES["llava_onevision_0_5b"])
    draw_stages(rows, content["title"], folder / "bench.png")
    for name, draw in (("frames", draw_over_frames), ("ratios", draw_over_ratios)):
        content, rows = read_results(FILES[name])
        draw(rows, content["title"], folder / f"bench_{name}.png")


def main() -> None:
    write_tables(PAGES, "bench", blocks())
    draw_plots(ROOT / "docs")


if __name__ == "__main__":
    main()
