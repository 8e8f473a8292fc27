"""Hosts a family that no row names, if its classes and one checkpoint show that a row would do."""

import warnings

from transformers import PreTrainedModel, ProcessorMixin

from ..errors import OptionError
from ..families.table import FAMILIES
from .against_stock import compare_with_stock
from .derived_row import derived_row, drop_rows, put_rows

GUIDE = "See docs/add_a_family.md."


def host_family(model: PreTrainedModel, processor: ProcessorMixin) -> None:
    """Host a family of models that VidCom² has no class for, in this process.

    Afterwards `vidcom2.apply` takes the model and its processor, `vidcom2.load` its checkpoints, and all else that
    takes a model runs it. Commands do not: each is a process of its own.

    From the conventions of Qwen's videos, this derives what must differ from the stock class, and compares the two on
    short prompts with frames of noise. What that cannot show stays your risk: names of weights at loading, processors
    that keep a state, sound, beams, images beside videos, later turns of a chat. So a warning says that the family is
    hosted.

    Args:
        model: of Transformers' own class with a head. It stays as it is.
        processor: its stock processor, which stays as it is, too.

    Raises:
        ValueError: if the family has a class here already, breaks a convention, or differs from its stock class in a
            comparison. Then it is not hosted.
    """
    if not (isinstance(model, PreTrainedModel) and isinstance(processor, ProcessorMixin)):
        raise OptionError(
            f"`model` is a {type(model).__name__} and `processor` a {type(processor).__name__}. Pass a model that "
            "Transformers' own class loaded, and its processor."
        )
    model_type = model.config.model_type
    if model_type in FAMILIES:
        raise OptionError(f"VidCom² has classes for {FAMILIES[model_type].name} already. Call `vidcom2.apply`.")
    try:
        rows = derived_row(model, processor)
    except OptionError as error:
        raise OptionError(f"{model_type!r} needs code of its own: {error}. {GUIDE}") from error
    put_rows(*rows)
    try:
        compared = compare_with_stock(model, processor)
        if differing := [f"{each.what} ({each.difference})" for each in compared if each.difference]:
            raise OptionError(f"{model_type!r} differs from its stock class in {'; '.join(differing)}. {GUIDE}")
    except BaseException:
        drop_rows(*rows)
        raise
    warnings.warn(
        f"VidCom² hosts {model_type!r} by its conventions, in this process alone: the hosted model passed "
        f"{len(compared)} comparisons with {type(model).__name__}, on noise and with these weights alone.",
        stacklevel=2,
    )
