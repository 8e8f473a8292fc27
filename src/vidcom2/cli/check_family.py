"""`vidcom2 check-family` asks whether a family that no row names could be hosted by a row, and prints that row."""

from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from ..errors import OptionError, one_line
from .console import one_line_errors, out, print_line, status


def check_family_command(
    model: Annotated[str, typer.Argument(help="Checkpoint: a Hub id, `org/name`, or a folder.", metavar="MODEL")],
    revision: Annotated[str | None, typer.Option(help="Commit, tag or branch.", show_default="main")] = None,
) -> None:
    """Check whether VidCom² could host a family of models that it has no class for, and print the row that would do it.

    This loads the checkpoint in Transformers' own class, on the CPU. The exit code is 1 if the family breaks a
    convention, or if the hosted model differs from the stock class.
    """
    with one_line_errors():
        with status("Importing Transformers ..."):
            from transformers import (
                MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
                AutoConfig,
                AutoModelForImageTextToText,
                AutoProcessor,
            )

            from ..conventions.against_stock import compare_with_stock
            from ..conventions.derived_row import BrokenConventionError, derived_row, hosted, row_text
            from ..families.table import FAMILIES
        source = {"revision": revision, "trust_remote_code": False}
        try:
            config = AutoConfig.from_pretrained(model, **source)
        except (OSError, ValueError) as error:
            raise OptionError(f"the config of {model!r} cannot be read: {one_line(error)}") from error
        if config.model_type in FAMILIES:
            print_line(f"{FAMILIES[config.model_type].name} has a row: `vidcom2.load` loads it.")
            return
        if type(config) not in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING:
            raise OptionError(
                f"{model!r} is of type {config.model_type!r}, for which Transformers has no class that takes images or "
                "videos beside text. Name a checkpoint of a video LLM."
            )
        try:
            with status("Loading ..."):
                loaded = AutoModelForImageTextToText.from_pretrained(model, **source)
                processor = AutoProcessor.from_pretrained(model, **source)
        except (OSError, ValueError) as error:
            raise OptionError(f"{model!r} cannot be loaded by Transformers' own class: {one_line(error)}") from error
        try:
            family, stock_processor, row = derived_row(loaded, processor)
        except BrokenConventionError as error:
            print_line(escape(f"{config.model_type!r} needs code of its own: {error}. See docs/add_a_family.md."))
            raise typer.Exit(1) from None
        with status("Comparing with the stock class ..."), hosted(family, stock_processor, row):
            compared = compare_with_stock(loaded, processor)
        table = Table(title=escape(f"{config.model_type}, hosted by a row, and its stock class"))
        for column in ("compared", "difference"):
            table.add_column(column, overflow="fold")
        for each in compared:
            table.add_row(each.what, escape(each.difference) or "[green]none[/]")
        out.print(table)
        if any(each.difference for each in compared):
            print_line("A row alone does not host this family. See docs/add_a_family.md.")
            raise typer.Exit(1)
        print_line("The row, for src/vidcom2/families/table.py, and that of its processor:")
        print_line(escape(row_text(family, stock_processor, row)))
