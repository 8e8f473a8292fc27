"""`vidcom2 eval` turns options into a table. Functions that return data do the work."""

import dataclasses
import hashlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from ..asking.candidates import Candidate, budget_in_words, candidates_of, changed_settings, others_in_words
from ..errors import OptionError, written_to
from ..evaluation.accuracy_tables import named, table, unanswered
from ..evaluation.folder import ANSWERS, PLOT, RESULTS, TABLE, check_questions, described, locked_folder
from ..evaluation.references import reference_labels
from ..evaluation.which_ratio import MARGIN, enough_in_words
from ..judging.questions import Question, checked_questions, read_questions
from ..loading.finding_checkpoints import Resolved, resolve
from ..loading.placement import Placement, check_machine
from ..presets import NUM_FRAMES
from ..records.fingerprints import certificate_of, check_loaded
from ..records.provenance import birth_certificate, command_line, commit_of_run, cpu_name, without_folder
from ..records.run_record import AnswerFile
from .checking import QUESTION_KEYS, check_rows, rows_of_questions
from .console import (
    exit_with,
    files_of_methods,
    imports_in_commands,
    one_line_errors,
    print_line,
    print_table,
    print_verdict,
    progress_of,
    stoppable,
    takes_fields,
    takes_placement,
    takes_settings,
)
from .loading import (
    ModelOption,
    TemplateOption,
    announce_demo,
    import_libraries,
    template_arguments,
    what_answers_depend_on,
)
from .verdicts import verdict_of_eval


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvalOptions:
    """The options of `vidcom2 eval`. The command has one option for each field, with its help text.

    Attributes:
        settings: fields of `CompressionSettings` and of the model's family, for all methods that read them.
    """

    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    placement: Placement = dataclasses.field(default_factory=Placement)
    data: Annotated[
        Path,
        typer.Option(
            help="The questions, a JSONL file. Each line has `video` and `question`, and may have `answer`, `choices` "
            "and `kind`.",
            show_default=False,
        ),
    ]
    check_only: Annotated[
        bool, typer.Option("--check", help="Only check all questions and videos, without a model.")
    ] = False
    model: ModelOption = None
    methods: Annotated[
        str,
        typer.Option(
            "--methods",
            "--method",
            help="Methods to compare. A method's own settings follow a colon: "
            "`random,vidcom2:compression_scoring=released`.",
        ),
    ] = "vidcom2,random"
    ratios: Annotated[str, typer.Option("--ratios", "--ratio", help="Retention ratios to compare.")] = (
        "0.5,0.25,0.15,0.1"
    )
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Folder for the answers and the results.", show_default="DATA-eval"),
    ] = None
    limit: Annotated[
        int | None, typer.Option(help="Ask only this many questions, the first ones.", min=1, show_default="all")
    ] = None
    num_frames: Annotated[
        int, typer.Option("--num-frames", "--frames", help="Frames sampled evenly from each video.", min=1)
    ] = NUM_FRAMES
    batch_size: Annotated[int, typer.Option(help="How many prompts one call of `generate` answers.", min=1)] = 8
    workers: Annotated[int, typer.Option(help="How many videos are read at once while the model runs.", min=1)] = 2
    max_new_tokens: Annotated[int, typer.Option(help="Maximum length of an answer, in tokens.", min=1)] = 32
    chat_template_kwargs: TemplateOption = None
    letters: Annotated[
        bool | None,
        typer.Option(
            help="Answer a question with options by its most probable letter, or read which option a text names.",
            show_default="letters, unless the model thinks aloud",
        ),
    ] = None

    reference: Annotated[
        str | None,
        typer.Option(
            help="Compare with this method too, at the same ratio: `vidcom2` for mine minus vidcom2; or with "
            "`vidcom2:0.25`, at this ratio.",
            show_default="all tokens alone",
        ),
    ] = None
    margin: Annotated[
        float, typer.Option(help="The loss of right answers that you accept, in points.", min=0.0, max=100.0)
    ] = MARGIN
    report_only: Annotated[
        bool,
        typer.Option(
            "--report-only",
            help="Write the report of a finished evaluation anew, with all methods that it has answers of, and without "
            "a model. --methods and --ratios say nothing then.",
        ),
    ] = False

    @property
    def folder(self) -> Path:
        return self.output or Path(f"{self.data.stem}-eval")

    def check(self) -> tuple[Resolved, list[Candidate]]:
        """Check the options and return the model and the candidates. Raises an OptionError or a CheckpointError."""
        model = resolve(self.model, self.placement, self.settings)
        template_arguments(self.chat_template_kwargs)
        candidates = candidates_of(self.methods, self.ratios, settings=self.settings)
        if self.reference is not None:
            reference_labels(self.reference, candidates)
        return model, candidates

    def arguments(self, model: Resolved, candidates: Sequence[Candidate]) -> dict[str, Any]:
        """Return what the answers depend on, which must be the same when a run is continued."""
        of_run = what_answers_depend_on(self, model)
        del of_run["imported"]  # each candidate says which files its methods are in
        return of_run | {
            "data_sha256": hashlib.sha256(self.data.read_bytes()).hexdigest(),
            "candidates": {each.label: described(each, self.settings, files_of_methods()) for each in candidates},
            "letters": "unless the model thinks aloud" if self.letters is None else self.letters,
        }

    @property
    def report_command(self) -> str:
        """The command that writes the report of these questions. It names no model and no method."""
        without = ("output", "check_only", "model", "methods", "ratios")
        plain = dataclasses.replace(self, settings={}, placement=Placement())
        return command_line(plain, "eval", without, data=without_folder(self.data))

    def command(self, model: Resolved) -> str:
        """Return the command that gives the same answers. The results hold it, with files called by their names."""
        names = {"data": without_folder(self.data), "model": without_folder(str(self.model))}
        without, commit = ("output", "check_only", "report_only"), model.source.commit
        return command_line(self, "eval", without, imports_in_commands(), commit, **names)


@partial(takes_settings, without=("compression_method", "retention_ratio"))
@takes_placement
@takes_fields(EvalOptions)
def eval_command(options: EvalOptions) -> None:
    """Find out which ratio is enough for your task, by comparing methods and ratios on your own questions.

    Answers each question with all tokens and with each method at each ratio. Writes answers.jsonl, a table
    (results.md), a plot (results.png) and results.json, which `vidcom2 publish --results` takes. Started again with the
    same model and arguments, it continues where it stopped; with further methods or ratios, it asks with these alone.
    Exit code 3 means that some questions were not answered.
    """
    remedy = "Use --device-map auto, or --dtype bfloat16 with another --output."
    with one_line_errors(remedy):
        if options.check_only:
            options.check()
            check_rows(rows_of_questions(checked_questions(options.data)), QUESTION_KEYS, "questions")
            return
        questions = read_questions(options.data, options.limit)
        if options.reference is not None and not any(question.answers for question in questions):
            raise OptionError(
                f"`--reference` is {options.reference!r}, but no question in {options.data.name} has an `answer`, so "
                "there are no right answers to compare."
            )
        if options.report_only:
            from ..evaluation.finished import report_again

            part = None if options.limit is None else options.report_command
            rows, results, left_out = report_again(options.folder, questions, options.reference, options.margin, part)
        else:
            left_out = {}
            if number := sum(each.given.get("num_frames") is not None for each in questions):
                note = f"`num_frames` in {number:,} questions is only copied. --num-frames holds for all of them."
                print_line(f"[yellow]Note:[/] {escape(note)}")
            check_machine(options.placement)  # before the methods, whose check imports PyTorch
            model, candidates = options.check()
            arguments = options.arguments(model, candidates)
            announce_demo(options.model)
            with stoppable(options.folder), locked_folder(options.folder, arguments) as file:
                rows, results = _evaluated(options, model, questions, candidates, arguments, file)
    print_table(table(results))
    errors = [row for row in rows if "error" in row]
    if errors:
        first = escape(f"{errors[0]['id']}: {errors[0]['error']}")
        print_line(f"[yellow]Errors:[/] {len(errors)} of {len(rows)} questions were not answered. The first is {first}")
    for result in results:
        if "refused" in result:
            print_line(f"[yellow]Refused:[/] {escape(named(result))}, {escape(result['refused'])}")
    for label, number in left_out.items():
        lacks = f"{label}, which lacks {number} of {len(rows)} answers. Ask for them with its --methods and --ratios."
        print_line(f"[yellow]Left out:[/] {escape(lacks)}")
    for line in unanswered(results):
        print_line(f"[yellow]Caution:[/] {escape(line)}")
    print_line(escape(f"In {options.folder}: {ANSWERS}, {RESULTS}, {TABLE}, {PLOT}"))
    if (is_enough := enough_in_words(results, options.margin)) is not None:
        print_line(escape(is_enough))
    print_verdict(verdict_of_eval(results))
    exit_with([f"{row['id']}: {row['error']}" for row in errors])


def _evaluated(
    options: EvalOptions,
    model: Resolved,
    questions: Sequence[Question],
    candidates: Sequence[Candidate],
    arguments: dict[str, Any],
    file: AnswerFile,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Answer the questions. Returns the rows of the answers and the results, and writes both to the locked folder."""
    check_questions(file, questions)  # before the model is loaded
    import_libraries(options.placement)
    from ..asking.comparison import environment
    from ..evaluation.evaluate import evaluate
    from ..evaluation.report import write_report
    from ..loading.checkpoints import load_resolved

    checkpoint = load_resolved(model)
    check_loaded(checkpoint.identity, arguments)
    with written_to(options.folder):
        command = options.command(model)
        commits = file.claim(arguments, commit_of_run(), command)
        with progress_of("Answering") as progress:
            rows = evaluate(
                checkpoint,
                questions,
                candidates,
                file,
                num_frames=options.num_frames,
                batch_size=options.batch_size,
                workers=options.workers,
                max_new_tokens=options.max_new_tokens,
                chat_template_kwargs=arguments["chat_template_kwargs"],
                letters=options.letters,
                progress=progress,
            )
        of_model = certificate_of(checkpoint.identity)
        certificate = birth_certificate(
            model.name_in_results,
            command,
            **environment(checkpoint.model),
            cpu=cpu_name(),
            **of_model,
            # The name replaces the folder's path, since paths of this machine are nobody else's business.
            arguments=arguments | of_model | {"model": model.name_in_results},
            data=options.data.name,
            questions=len(questions),
            model_settings=checkpoint.model.config.compression_settings().as_dict(),
            vidcom2_commits=commits,
        )
        config = checkpoint.model.config
        changed = changed_settings(config, config.compression_settings())
        shared = [*budget_in_words(changed), *others_in_words(changed)]
        title = ", ".join([f"{model.name_in_results} on {options.data.name}", *shared])
        chosen = options.reference, options.margin
        return rows, write_report(options.folder, title, questions, rows, candidates, certificate, *chosen)
