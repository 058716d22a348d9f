"""How each kind of stage is trained: from the last policy of the run, into a folder of its own.

A reward model is no policy: the stage after it starts from the model before it.
"""

from collections.abc import Sequence, Set
from functools import partial
from pathlib import Path

from practicum.core import Episode, Group, RecipeError, Sample, content_hash
from practicum.engines.trainer import LocalTrainer, TrainerSettings, read_weights
from practicum.engines.value_head import VALUE_HEAD
from practicum.engines.workers import LedTrainer, Workers
from practicum.learn.curriculum import Cell
from practicum.learn.distil import DistilSettings, distil
from practicum.learn.preference import PreferenceSettings, preference
from practicum.learn.reward_model import RewardModelSettings, reward_model
from practicum.learn.rl import RLSettings, rl
from practicum.learn.sft import SFTSettings, sft
from practicum.learn.stage import Stage
from practicum.models.digest import digest
from practicum.models.reference import resolve
from practicum.models.render import Renderer
from practicum.recipe.evaluate import make_sampler
from practicum.recipe.judge import Judge
from practicum.recipe.player import Player
from practicum.recipe.settings import StageSettings
from practicum.store import checkpoint


class Stages:
    """The stages of one run."""

    def __init__(self, player: Player, device: str, workers: Workers | None = None) -> None:
        self.player, self.device, self.workers = player, device, workers
        self.recipe, self.run, self.progress = player.recipe, player.run, player.progress

    def train(self, settings: StageSettings, source: Path) -> Path:
        """Train one stage from the model in `source`; the folder of the model it makes."""
        target = self._folder(settings.name)
        if not target.exists():
            self._train(settings, source, target)
        name = str(checkpoint.load(target)["digest"])
        kind = "reward_model" if isinstance(settings, RewardModelSettings) else "stage"
        if not any(line["name"] == settings.name for line in self.run.journal(kind)):
            self.run.log(kind, name=settings.name, digest=name)
            self.progress.note(f"{settings.name}: weights {name}")
        return target

    def _train(self, settings: StageSettings, source: Path, target: Path) -> None:
        trainer = self._trainer(source, self.recipe.trainer, _head_rate(settings))
        stage = Stage(settings.name, self.run, trainer, self.progress)
        stage.inherit(checkpoint.meta(source))
        seed, player = self.recipe.seed, self.player
        match settings:
            case SFTSettings():
                shown = self._demonstrations(settings)
                stage.paid(self._shown(settings.name))
                sft(stage, settings, *shown)
            case PreferenceSettings():
                preference(
                    stage,
                    settings,
                    lambda: player.compare(settings, trainer.publish()),
                    seed=seed,
                )
            case RewardModelSettings():
                reward_model(
                    stage,
                    settings,
                    lambda: player.compare(settings, trainer.publish()),
                    player.renderer.end_id,
                    seed=seed,
                )
            case RLSettings():
                self._rl(stage, settings, source)
            case DistilSettings():
                distil(
                    stage,
                    settings,
                    player.sampler,
                    player.cells,
                    partial(player.practise, settings),
                    self._frozen(self._model(settings.teacher)),
                    seed=seed,
                )
        name = trainer.publish().digest
        if isinstance(settings, RewardModelSettings):
            assert isinstance(trainer, LocalTrainer)
            assert trainer.value_head is not None
            name = content_hash([name, digest({VALUE_HEAD: trainer.value_head})])

        def write(folder: Path) -> None:
            trainer.export(folder)
            player.renderer.tokenizer.save_pretrained(folder)

        meta = {"stage": settings.name, "digest": name, "graders": stage.payers}
        checkpoint.save(target, write, meta)

    def _demonstrations(self, settings: SFTSettings) -> tuple[list[Sample], list[Sample]]:
        player = self.player
        if not settings.teacher:
            train, held_out = player.gold(
                settings.name, settings.demonstrations, settings.validation
            )
            return train, held_out
        folder = self._model(settings.teacher)
        teacher = make_sampler(self.recipe, folder, player.renderer)
        teacher.load(read_weights(folder))
        return player.lessons(settings, teacher)

    def _shown(self, stage: str) -> list[Episode]:
        """The episodes of a stage's demonstrations, which are there."""
        return self.run.read_episodes(f"{stage}-demonstrations", 0)

    def _rl(self, stage: Stage, settings: RLSettings, source: Path) -> None:
        player = self.player
        reference = None
        if settings.loss.kl:
            name = settings.loss.reference
            reference = self._frozen(self._model(name) if name else source)
        shown: list[Sample] = []
        if settings.mix:
            (shown,) = player.gold(settings.name, settings.mix.demonstrations)
            stage.paid(self._shown(settings.name))
        judge = self._judge(settings)
        if judge:
            stage.inherit(checkpoint.meta(self._folder(settings.reward_model)))

        def practise(
            step: int, picks: Sequence[tuple[Cell, int]], canaries: Set[int]
        ) -> list[Group]:
            groups = player.practise(settings, step, picks, canaries)
            return judge(groups) if judge else groups

        rl(
            stage,
            settings,
            player.sampler,
            player.cells,
            practise,
            reference=reference,
            demonstrations=shown,
            seed=self.recipe.seed,
        )

    def _judge(self, settings: RLSettings) -> Judge | None:
        if not settings.reward_model:
            return None
        folder = self._folder(settings.reward_model)
        return Judge(
            self._frozen(folder, head_rate=1.0),
            str(checkpoint.load(folder)["digest"]),
            settings.reward_weight,
            self.player.renderer.end_id,
        )

    # Models by name

    def _folder(self, stage: str) -> Path:
        return self.run.folder / "models" / stage

    def _model(self, name: str) -> Path:
        """The model of a stage of this run, or another one with the same tokens."""
        folder = self._folder(name)
        if not folder.exists():
            folder = resolve(name).path
        mine = self.player.renderer.tokenizer.get_vocab()
        if Renderer.for_folder(folder).tokenizer.get_vocab() != mine:
            raise RecipeError(
                f"the model {name!r} has other tokens than the one that is trained, so it cannot "
                "teach it or be compared with it: choose one of the same family"
            )
        self.progress.note(f"beside it: {name}")
        return folder

    def _frozen(self, folder: Path, *, head_rate: float | None = None) -> LocalTrainer | LedTrainer:
        """A model that only scores."""
        settings = self.recipe.trainer.model_copy(update={"lora": None})
        return self._trainer(folder, settings, head_rate)

    def _trainer(
        self, folder: Path, settings: TrainerSettings, head_rate: float | None
    ) -> LocalTrainer | LedTrainer:
        """With a value head that learns so much quicker than the rest, or without one."""
        if self.workers:
            return LedTrainer(self.workers, folder, settings, rope=self.recipe.rope)
        return LocalTrainer(
            folder,
            settings,
            device=self.device,
            rope=self.recipe.rope,
            value_head=head_rate is not None,
            head_rate=head_rate or 1.0,
        )


def _head_rate(settings: StageSettings) -> float | None:
    """The learning rate of a stage's value head, in that of the rest; None without a head."""
    if isinstance(settings, RewardModelSettings):
        return settings.head_learning_rate / settings.learning_rate
    if isinstance(settings, RLSettings) and settings.critic is not None:
        return settings.critic.learning_rate / settings.learning_rate
    return None
