"""Converting lmms-eval's results file, `*_results.json`, to the form of the other result files."""

from typing import Any


def is_of_lmms_eval(content: dict[str, Any]) -> bool:
    """Return whether lmms-eval wrote this content."""
    return "lmms_eval_version" in content


def with_rows(content: dict[str, Any]) -> dict[str, Any]:
    """Return `title`, `birth_certificate` and `rows`: one row for each figure of each task, as lmms-eval gives it.

    The certificate is the one that `--model vidcom2` leaves among the options. It is empty if another model was run.
    Standard errors are dropped, because tasks give figures in per cent but lmms-eval gives their errors as fractions.

    Raises:
        KeyError, AttributeError: on content of another form.
    """
    certificate = content["config"]["resolved_cli_args"].get("birth_certificate", {})
    rows = [
        {
            "task": task,
            "metric": name.removesuffix(",none"),
            "value": value,
            "questions": content["n-samples"][task]["effective"],
        }
        for task, figures in content["results"].items()
        for name, value in figures.items()
        if isinstance(value, float | int) and "_stderr" not in name
    ]
    return {"title": _title(certificate) if certificate else "", "birth_certificate": certificate, "rows": rows}


def _title(certificate: dict[str, Any]) -> str:
    settings = certificate["model_settings"]
    how = f"{settings['compression_method']} at retention_ratio {settings['retention_ratio']:g}"
    if settings["retention_ratio"] == 1:
        how = "all tokens"
    if settings.get("max_video_tokens") is not None:  # not in results of before there was this setting
        how += f" within {settings['max_video_tokens']} video tokens"
    if settings.get("vision_method", "full") != "full":
        how += f", vision_method {settings['vision_method']}"
    return f"lmms-eval {certificate['lmms_eval']}: {how}, {certificate['num_frames']} frames"
