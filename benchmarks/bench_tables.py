"""Write the tables of `vidcom2 bench` into docs and README, and draw its plots, from the result files.

    python -m benchmarks.bench_tables

Each table stands between `<!-- bench: NAME -->` and `<!-- end -->`.
"""

import json
from collections.abc import Sequence
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
GPU = ("ours: 7B, H200", 0.25, 0.28, 0.23)  # the run of docs/benchmarks.md, "On a GPU"; its raw files were not kept
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


def speed(rows: list[dict[str, Any]]) -> str:
    """Make the table of README: how many times as fast the paper's model is, and those measured here, by VidCom²."""
    name, ratio, llm, whole = GPU
    lines = [["", "tokens kept", "LLM generation", "whole model", "quality kept"]]
    lines.append([name, f"{100 * ratio:g} %", faster(llm), faster(whole), "not measured"])
    for ratio, llm, whole, quality in PAPER:
        times = ("–" if saved is None else faster(saved) for saved in (llm, whole))
        lines.append(["paper: 7B, A100", f"{100 * ratio:g} %", *times, quality])
    for row in rows:
        if row["saved"] and method_name(row) == "vidcom2" and row["retention_ratio"] == ratio:
            saved = (faster(row["saved"][name]) for name in ("llm_generation", "model_generation"))
            lines.append(["ours: 0.5B, CPU", f"{100 * row['retention_ratio']:g} %", *saved, "not measured"])
    return pipes(lines)


def bounds(rows: list[dict[str, Any]]) -> str:
    """Say in README what dropping tokens can give at most, and how much faster a further question is.

    Where one part takes the share s of the time, the rest takes 1 - s, however little is left of that part.
    """
    spent = next(row["seconds"] for row in rows if row["method"] == ALL_TOKENS)
    shares = PAPER_SECONDS[0] / PAPER_SECONDS[1], spent["llm_generation"] / spent["model_generation"]
    paper, ours = (f"{100 * share:.0f} % of the time ({1 / (1 - share):.1f}× as fast)" for share in shares)
    later = {row["way"]: row["seconds_each_later"] for row in watch_results()["rows"]}
    anew, features, cache = (f"{later[way]:.2g} s" if later[way] < 10 else f"{later[way]:.0f} s" for way in WAYS)
    return (
        f"- **At most**, dropping tokens saves the language model's part: {paper} in the paper's 7B, {ours} in ours.\n"
        "- **A second question** about a [watched video](docs/benchmarks.md#several-questions-about-one-video) takes\n"
        f"  {features}, or {cache} from its KV cache, and {anew} by `ask` (0.5B, CPU)."
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
        made[f"{name}-speed"] = speed(rows)
        made[f"{name}-bounds"] = bounds(rows)
        made[f"{name}-origin"] = origin(content, rows)
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
