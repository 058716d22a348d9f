"""Longer texts than a model was trained with: its rotary positions scaled, in its configuration.

Sampler, trainer and whoever loads the exported folder read that configuration, so all of them have
the same positions. The scaling is fixed: a token's position does not depend on how long the text
grows, or keys that a sampler keeps would be others than those that the trainer computes.
"""

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from practicum.core import EngineError

MARK = "practicum_rope"  # in a model's configuration: the settings that scaled it


class RopeSettings(BaseModel):
    """How rotary positions are scaled; names as in transformers' `rope_parameters`.

    "linear" divides all frequencies by the factor (position interpolation, arXiv 2306.15595).
    "ntk" raises their base instead, so that the fastest stays and the slowest is divided
    ("NTK-aware", arXiv 2309.00071, section 3.1; not transformers' "dynamic", whose base moves with
    the length of the text). "yarn" keeps the fast ones, divides the slow ones, and makes attention
    a little sharper (arXiv 2309.00071).
    """

    model_config = ConfigDict(extra="forbid")
    rope_type: Literal["linear", "ntk", "yarn"] = "yarn"
    factor: float = Field(gt=1)  # by which the limit grows
    original_max_position_embeddings: int | None = Field(None, ge=1)  # None: the model's own limit
    # Of yarn only; None: what the paper recommends.
    beta_fast: float | None = Field(None, gt=0)  # with so many turns within the limit, kept: 32
    beta_slow: float | None = Field(None, gt=0)  # with so few, divided: 1
    attention_factor: float | None = Field(None, gt=0)  # of queries and keys: 0.1 ln(factor) + 1

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.rope_type != "yarn" and (extra := self._of_yarn()):
            raise ValueError(f"only rope_type 'yarn' has {', '.join(extra)}")
        if (self.beta_fast or 32) <= (self.beta_slow or 1):
            raise ValueError("beta_fast must be more than beta_slow (they are 32 and 1 by default)")
        return self

    def _of_yarn(self) -> dict[str, float]:
        names = ("beta_fast", "beta_slow", "attention_factor")
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def scale(self, config: Any) -> None:
        """Change the configuration of a model in place; one that has this scaling stays as it is.

        Raises EngineError for a model that is scaled otherwise, or has no rotary positions.
        """
        text = config.get_text_config()
        wanted, made = self.model_dump(exclude_none=True), getattr(text, MARK, None)
        if made == wanted:
            return
        parameters = getattr(text, "rope_parameters", None) or {}
        if made or parameters.get("rope_type") != "default":
            raise EngineError(
                f"the model's positions cannot be scaled by {wanted}, for they are "
                f"{made or parameters or 'not rotary'}; leave [rope] out, or take another model"
            )
        original = self.original_max_position_embeddings or text.max_position_embeddings
        if self.rope_type == "ntk":
            size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
            size = int(size * parameters.get("partial_rotary_factor", 1.0))
            base = parameters["rope_theta"] * self.factor ** (size / (size - 2))
            parameters = parameters | {"rope_theta": base}
        else:
            parameters = parameters | {"rope_type": self.rope_type, "factor": self.factor}
        if self.rope_type == "yarn":
            parameters |= {"original_max_position_embeddings": original} | self._of_yarn()
        text.rope_parameters = parameters
        text.max_position_embeddings = int(self.factor * original)
        setattr(text, MARK, wanted)


def position_limit(config: Any) -> int:
    """How many tokens a text may have."""
    return config.get_text_config().max_position_embeddings
