"""How many processes share a model, and in which ways: the `[parallel]` table of a recipe.

Processes are started by torchrun. Their number is shard x replicate x tensor.
"""

import os
from datetime import timedelta
from functools import cached_property
from typing import Any, Self

import torch
import torch.distributed as dist
from pydantic import BaseModel, ConfigDict, Field, model_validator
from transformers.distributed import DistributedConfig

from practicum.core import EngineError


class ParallelSettings(BaseModel):
    """Ways to share a model. All of them can be combined."""

    model_config = ConfigDict(extra="forbid")
    shard: int = Field(1, ge=1)  # processes that share all weights (FSDP2), not the samples
    replicate: int = Field(1, ge=1)  # such groups beside each other (DDP, where shard is 1)
    tensor: int = Field(1, ge=1)  # processes that share each matrix, by the model's own plan
    expert: int = Field(1, ge=1)  # processes over which the experts of a mixture are spread
    context: int = Field(1, ge=1)  # of shard x replicate: processes that share a sequence

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if (self.shard * self.replicate) % self.context:
            raise ValueError("context must divide shard x replicate: they share those processes")
        return self

    @property
    def processes(self) -> int:
        """Number of processes to start."""
        return self.shard * self.replicate * self.tensor

    def config(self, dtype: str) -> DistributedConfig:
        """The same for transformers."""
        return DistributedConfig(
            fsdp_size=self.shard,
            dp_replicate_size=self.replicate,
            tp_size=self.tensor,
            ep_size=self.expert,
            fsdp_mixed_precision=dtype == "bfloat16",
        )


def world_size() -> int:
    """Number of processes that torchrun started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


class Layout:
    """Where this process stands. Its team shares the samples; other teams have others."""

    def __init__(self, settings: ParallelSettings, device: str) -> None:
        if world_size() != settings.processes:
            raise EngineError(
                f"[parallel] needs {settings.processes} processes and there are {world_size()}: "
                f"start them with torchrun --standalone --nproc-per-node {settings.processes} "
                "-m practicum.cli train RECIPE"
            )
        self.settings = settings
        if not dist.is_initialized():
            backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
            dist.init_process_group(backend, timeout=timedelta(minutes=10))
        self.rank = dist.get_rank()
        self.data, self.tensor = divmod(self.rank, settings.tensor)
        self.team, self.place = divmod(self.data, settings.context)
        self.teams = settings.shard * settings.replicate // settings.context
        # For orders and results: it waits for as long as episodes are played.
        self.control = dist.new_group(backend="gloo", timeout=timedelta(days=30))

    @cached_property
    def context_group(self) -> Any:
        """The processes that share this one's sequences; every process must ask for it."""
        size, tensor = self.settings.context, self.settings.tensor
        mine = None
        for team in range(self.teams):
            for t in range(tensor):
                ranks = [(team * size + place) * tensor + t for place in range(size)]
                group = dist.new_group(ranks)
                if self.rank in ranks:
                    mine = group
        return mine

    @property
    def speaks(self) -> bool:
        """Whether this process's results count: those of the others of its team are the same."""
        return self.place == 0 and self.tensor == 0

    def together(self, results: list[Any]) -> list[Any]:
        """The results of all teams, on every process."""
        everybody: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everybody, results if self.speaks else [], group=self.control)
        return [result for some in everybody for result in some]


def local_device() -> str:
    """The device of this process."""
    if not torch.cuda.is_available():
        return "cpu"
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    return "cuda"
