"""What a recipe may say. A wrong key is an error that names the nearest right one."""

import difflib
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from practicum.core import RecipeError
from practicum.domains import get_domain
from practicum.engines.parallel import ParallelSettings
from practicum.engines.rope import RopeSettings
from practicum.engines.trainer import TrainerSettings
from practicum.learn.distil import DistilSettings
from practicum.learn.preference import PreferenceSettings
from practicum.learn.reward_model import RewardModelSettings
from practicum.learn.rl import RLSettings
from practicum.learn.sft import SFTSettings
from practicum.models.reference import DEFAULT

StageSettings = Annotated[
    SFTSettings | PreferenceSettings | RewardModelSettings | RLSettings | DistilSettings,
    Field(discriminator="type"),
]
KINDS: dict[str, type[BaseModel]] = {
    "sft": SFTSettings,
    "preference": PreferenceSettings,
    "reward-model": RewardModelSettings,
    "rl": RLSettings,
    "distil": DistilSettings,
}


class Strict(BaseModel):
    """A table of a recipe: unknown keys are errors."""

    model_config = ConfigDict(extra="forbid")


class DomainSettings(Strict):
    """What is practised, and what is only measured."""

    train: list[str] = Field(min_length=1)
    held_out: list[str] = []  # whole domains that are never trained on
    levels: list[int] = Field([1, 2, 3], min_length=1)


class SamplerSettings(Strict):
    """How tokens are sampled."""

    dtype: str = Field("bfloat16", pattern="^(bfloat16|float32)$")
    max_rows: int = Field(48, ge=1)  # episodes decoded at once by one thread
    speculate: int = Field(0, ge=0)  # tokens guessed at once, from what was read; pays for copying
    window: int = Field(0, ge=0)  # tokens of a whole conversation; 0: as many as the model has


class EvaluationSettings(Strict):
    """The held-out tasks that every evaluation of the run plays."""

    tasks: int = Field(240, ge=1)  # spread evenly over all domains and levels
    repeats: int = Field(1, ge=1)  # attempts at each task
    temperature: float = Field(1.0, ge=0)


class RootSettings(Strict):
    """A root file system that tasks can ask for by name."""

    folder: str = ""  # such as an unpacked container image; empty: the host's own /usr
    mounts: dict[str, str] = {}  # read-only, path in the box to path here


class BoxSettings(Strict):
    """How boxes are made and run."""

    # auto: native if built, else bubblewrap; the others, see docs/sandbox.md
    backend: Literal["auto", "native", "bubblewrap", "podman", "docker", "gvisor", "landlock"] = (
        "auto"
    )
    max_running: int = Field(4, ge=1)  # commands at once
    ahead: int = Field(0, ge=0)  # boxes made in quiet moments, before they are asked for
    require: list[str] = []  # limits without which not to begin: memory, cpus, processes, own_uid
    roots: dict[str, RootSettings] = {}


class Recipe(Strict):
    """A whole run."""

    name: str = "run"
    seed: int = 0
    model: str = DEFAULT
    device: str = "auto"  # "auto": a GPU if there is one
    threads: int = Field(0, ge=0)  # of torch on the CPU; 0: one for each core
    keep_submissions: bool = True  # what is graded, so that `practicum regrade` can do it again
    domains: DomainSettings
    stages: list[StageSettings] = Field(min_length=1)
    rope: RopeSettings | None = None  # of all models of the run: the policy and those beside it
    sampler: SamplerSettings = SamplerSettings()
    trainer: TrainerSettings = TrainerSettings()
    parallel: ParallelSettings = ParallelSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    boxes: BoxSettings = BoxSettings()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        names = [stage.name for stage in self.stages]
        if len(set(names)) != len(names) or "base" in names:
            raise ValueError(f"stages need distinct names other than 'base', found {names}")
        self._check_names()
        self._check_processes()
        both = set(self.domains.train) & set(self.domains.held_out)
        if both:
            raise ValueError(f"domains both trained and held out: {sorted(both)}")
        for name in [*self.domains.train, *self.domains.held_out]:
            known = get_domain(name)
            high = [level for level in self.domains.levels if not 1 <= level <= known.levels]
            if high:
                raise ValueError(f"domain {name!r} has levels 1 to {known.levels}, not {high}")
        return self

    def _check_processes(self) -> None:
        """What several processes cannot do is said before they begin."""
        if self.parallel.processes == 1:
            return
        if self.trainer.lora or self.trainer.optimizer != "adamw":
            raise ValueError("[parallel] trains all weights with adamw: leave trainer.lora out")
        heads = [s.name for s in self.stages if s.type == "reward-model" or _has_critic(s)]
        if heads:
            raise ValueError(f"[parallel] has no value heads, and these need one: {heads}")

    def _check_names(self) -> None:
        """What a stage names of this recipe comes before it, and is what it takes it for."""
        before: list[str] = []
        kinds = {stage.name: stage.type for stage in self.stages}
        for stage in self.stages:
            judge = getattr(stage, "reward_model", "")
            if judge and (judge not in before or kinds[judge] != "reward-model"):
                judges = [name for name in before if kinds[name] == "reward-model"]
                raise ValueError(
                    f"{stage.name}: reward_model names a reward-model stage before it, "
                    f"{' or '.join(judges) or 'and there is none'}; not {judge!r}"
                )
            if stage.start not in ("", "base", *kinds):
                raise ValueError(f"{stage.name}: start is 'base' or a stage, not {stage.start!r}")
            loss = getattr(stage, "loss", None)
            named = (stage.start, getattr(stage, "teacher", ""), getattr(loss, "reference", ""))
            for other in named:
                if other in kinds and (other not in before or kinds[other] == "reward-model"):
                    raise ValueError(
                        f"{stage.name}: {other!r} is no stage before it that trains a policy"
                    )
            before.append(stage.name)

    def to_toml(self) -> str:
        """The resolved recipe: every setting with its value."""
        return tomli_w.dumps(self.model_dump(exclude_none=True))


def _has_critic(stage: StageSettings) -> bool:
    return isinstance(stage, RLSettings) and stage.critic is not None


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe in a TOML file, with `a.b=value` overrides (TOML values). Raises RecipeError."""
    try:
        return parse_recipe(path.read_text(), overrides, str(path))
    except OSError as error:
        raise RecipeError(f"cannot read the recipe {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise RecipeError(f"the recipe {path} is not UTF-8 text: save it as such") from error


def parse_recipe(text: str, overrides: Sequence[str] = (), source: str = "recipe") -> Recipe:
    """The recipe in a TOML text; see `load_recipe`."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RecipeError(f"{source} is not valid TOML: {error}") from error
    for override in overrides:
        _override(data, override)
    try:
        return Recipe.model_validate(data)
    except ValidationError as error:
        raise RecipeError(_explain(error, source)) from error


def _override(data: dict[str, Any], override: str) -> None:
    """Set one value; `stages.1.steps=5` reaches into lists."""
    path, equals, value = override.partition("=")
    if not equals:
        raise RecipeError(f"--set {override}: write it as key=value, such as --set seed=3")
    try:
        parsed = tomllib.loads(f"x = {value}")["x"]
    except tomllib.TOMLDecodeError:
        parsed = value  # a bare word is a string
    *parents, last = path.strip().split(".")
    place: Any = data
    try:
        for part in parents:
            place = place[int(part)] if isinstance(place, list) else place.setdefault(part, {})
        if isinstance(place, list):
            place[int(last)] = parsed
        else:
            place[last] = parsed
    except (ValueError, IndexError, TypeError, AttributeError) as error:
        raise RecipeError(f"--set {override}: there is no {path!r} in the recipe") from error


def _explain(error: ValidationError, source: str) -> str:
    lines = []
    for fault in error.errors():
        place = fault["loc"]
        told = [part for i, part in enumerate(place) if not (i == 2 and part in KINDS)]
        where = ".".join(map(str, told)) or "recipe"
        text = fault["msg"].removeprefix("Value error, ")
        if fault["type"] == "extra_forbidden":
            text = "there is no such key"
            near = difflib.get_close_matches(str(place[-1]), _keys(place[:-1]), 1, 0.4)
            text += f"; did you mean {near[0]!r}?" if near else f"; there are {_keys(place[:-1])}"
        lines.append(f"  {where}: {text}")
    return f"{source} is wrong:\n" + "\n".join(lines)


def _keys(place: Sequence[Any]) -> list[str]:
    """Keys that are known at a place of the recipe; a stage's has its kind third."""
    model: Any = Recipe
    if place and place[0] == "stages":
        model, place = KINDS[place[2]], place[3:]
    for part in place:
        field = model.model_fields.get(part) if hasattr(model, "model_fields") else None
        model = field.annotation if field else None
        options = [a for a in getattr(model, "__args__", ()) if hasattr(a, "model_fields")]
        model = options[0] if options else model
    return sorted(getattr(model, "model_fields", {}))
