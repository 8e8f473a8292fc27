"""benchmarks/published.json: accuracies of full models as their authors, or others, published them."""

import json
from pathlib import Path

ROWS = json.loads(Path(__file__).parents[1].joinpath("benchmarks", "published.json").read_text("utf-8"))["rows"]
SAID = ("method", "model", "ratio", "kept_percent", "benchmarks", "reported_by", "source", "source_url")
NULL_IF_NOT_SAID = ("frames", "average", "full_average")
# Papers give percentages of averages that they round to one decimal.
ROUNDING = 100 * 0.1 / 50


def test_each_row_says_what_was_measured_and_where_it_was_read() -> None:
    for row in ROWS:
        assert set(row) - {"note"} == {*SAID, *NULL_IF_NOT_SAID}, row
        assert all(row[name] for name in SAID) and row["source_url"].startswith("https://"), row
        assert row["ratio"] in (0.25, 0.2, 0.15, 0.1) and len(row["benchmarks"]) == len(set(row["benchmarks"])) >= 4
        assert (row["average"] is None) == (row["full_average"] is None), row


def test_no_report_is_listed_twice() -> None:
    reports = [tuple(row[name] for name in ("method", "model", "frames", "ratio", "reported_by")) for row in ROWS]
    assert len(set(reports)) == len(reports) > 100


def test_the_percentages_fit_the_averages() -> None:
    given = [row for row in ROWS if row["average"] is not None]
    for row in given:
        assert abs(100 * row["average"] / row["full_average"] - row["kept_percent"]) < ROUNDING, row
    assert len(given) > 80
