"""What families share whose positions are the order of the tokens: `generate` counts them as other models do.

Their parents' `generate` does otherwise.
"""

from transformers import GenerationMixin

from ..hosting.in_transformers import ParentModel


class PositionsByOrderMixin(ParentModel):
    """Numbers tokens in `generate` without padding on the left, as other models do.

    The parent counts padding, or leaves positions to `forward`, which counts it, and drops all other positions.
    Attention is the same, since it depends on distances alone.
    """

    prepare_inputs_for_generation = vars(GenerationMixin)["prepare_inputs_for_generation"]
