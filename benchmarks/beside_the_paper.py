"""Print what bench results save, beside the paper's Table 3 (LLaVA-OneVision-7B on A100), and what choosing costs.

python -m benchmarks.beside_the_paper BENCH_FOLDER
"""

from pathlib import Path
from typing import Annotated, Any

import typer

from vidcom2.measuring.bench_tables import method_name
from vidcom2.measuring.figures import EAGER
from vidcom2.measuring.results import read_results

# Table 3: retention ratio -> the share of time that VidCom² saves in the language model and in the whole model.
PAPER = {0.25: (0.708, 0.430)}
COSTS_AT_MOST = 0.03  # of its prefill, by this project's own aim


def lines(title: str, rows: list[dict[str, Any]]) -> list[str]:
    """Return a line for each method of a result file."""
    found = [title]
    for row in rows:
        if row["saved"] is None:
            continue
        seconds, saved = row["seconds"], row["saved"]
        share = seconds["compression"] / seconds["prefill"]
        told = f"LLM −{saved['llm_generation']:.1%}, model −{saved['model_generation']:.1%}"
        told += f"; choosing {share:.1%} of the prefill{'' if share <= COSTS_AT_MOST else ' (too much)'}"
        if row["peak_bytes"]:
            told += f"; peak {row['peak_bytes'] / 1e9:.2f} GB"
        of = f"{row['num_frames']} frames{'' if row['steps'] == EAGER else ', ' + row['steps']}"
        found.append(f"  {method_name(row)} at {row['retention_ratio']:.0%}, {of}: {told}")
    return found


def main(folder: Annotated[Path, typer.Argument(help="Folder that holds results of `vidcom2 bench`.")]) -> None:
    """Print the lines of all result files in the folder."""
    for ratio, (llm, model) in PAPER.items():
        print(f"The paper's Table 3, VidCom² at {ratio:.0%}: LLM −{llm:.1%}, model −{model:.1%}")
    for path in sorted(folder.rglob("*.json")):
        content, rows = read_results(path)
        print("\n".join(lines(f"{path.parent.name}: {content['title']}", rows)))


if __name__ == "__main__":
    typer.run(main)
