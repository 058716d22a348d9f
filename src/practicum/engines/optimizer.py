"""AdamW on one block of master weights, with moments in fp32 or in eight bits.

Decoupled weight decay (Loshchilov and Hutter 2019, arXiv 1711.05101). In eight bits each run of 256
moments has a scale of its own (Dettmers et al. 2022, arXiv 2110.02861), as bitsandbytes has it: 2
bytes a parameter instead of 8.
"""

from typing import Any, Literal, Protocol

import torch
from torch.optim.adamw import adamw

from practicum.core import EngineError
from practicum.engines.masters import Masters, Whole
from practicum.models.quiet import quiet

OptimizerName = Literal["adamw", "adamw8bit"]
CHUNK = 1 << 22  # parameters at once in eight bits: a CPU unpacks their moments into fp32


class Optimizer(Protocol):
    """Changes master weights [N] by their gradient [N]."""

    def step(self, learning_rate: float, gradient: torch.Tensor) -> None:
        """Apply a gradient."""
        ...

    def state(self) -> dict[str, torch.Tensor]:
        """What it remembers, beside the number of steps; nothing before the first one.

        The tensors are its own: what is written to them counts.
        """
        ...

    def begin(self, steps: int) -> None:
        """Start as after so many steps; what it remembers of them is for the caller to write."""
        ...


class AdamW:
    """Moments in fp32."""

    def __init__(
        self,
        masters: Masters,
        device: str,
        *,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
    ) -> None:
        self._masters, self._device, self._steps = masters, device, 0
        self._betas, self._eps, self._weight_decay = betas, eps, weight_decay
        self._state: dict[str, torch.Tensor] = {}

    def step(self, learning_rate: float, gradient: torch.Tensor) -> None:
        """See `Optimizer`."""
        if not self._state:
            self.begin(0)
            self._allocate()

        def change(at: slice, values: torch.Tensor) -> None:
            adamw(
                [values],
                [gradient[at]],
                [self._state["exp_avg"][at]],
                [self._state["exp_avg_sq"][at]],
                [],
                [torch.tensor(float(self._steps), device=self._device)],
                fused=True,
                amsgrad=False,
                maximize=False,
                lr=learning_rate,
                beta1=self._betas[0],
                beta2=self._betas[1],
                eps=self._eps,
                weight_decay=self._weight_decay,
            )

        self._masters.update(change)
        self._steps += 1

    def state(self) -> dict[str, torch.Tensor]:
        """`exp_avg` and `exp_avg_sq`, each [N]."""
        return self._state

    def begin(self, steps: int) -> None:
        """See `Optimizer`."""
        self._steps, self._state = steps, {}
        if steps:
            self._allocate()

    def _allocate(self) -> None:
        for name in ("exp_avg", "exp_avg_sq"):
            self._state[name] = torch.zeros(len(self._masters), device=self._device)


class AdamW8bit:
    """Moments in eight bits, some parameters at a time."""

    def __init__(self, masters: Whole, **settings: Any) -> None:
        try:
            with quiet():
                from bitsandbytes.optim import AdamW8bit as Library
        except ImportError as error:
            raise EngineError(
                'optimizer = "adamw8bit" needs bitsandbytes: pip install "practicum[8bit]", or set '
                '"adamw"'
            ) from error
        self._parts = [torch.nn.Parameter(part) for part in masters.block.split(CHUNK)]
        self._optimizer = Library(self._parts, lr=0.0, min_8bit_size=1, **settings)
        self._state: dict[str, torch.Tensor] = {}

    def step(self, learning_rate: float, gradient: torch.Tensor) -> None:
        """See `Optimizer`."""
        if not self._state:
            self._allocate(0)
        self._optimizer.param_groups[0]["lr"] = learning_rate
        for part, grad in zip(self._parts, gradient.split(CHUNK), strict=True):
            part.grad = grad
        self._optimizer.step()
        for part in self._parts:
            part.grad = None

    def state(self) -> dict[str, torch.Tensor]:
        """Codes `state1` and `state2`, uint8 [N], and the scales `absmax1`, `absmax2` of runs."""
        return self._state

    def begin(self, steps: int) -> None:
        """See `Optimizer`."""
        self._optimizer.state.clear()
        self._state = {}
        if steps:
            self._allocate(steps)

    def _allocate(self, steps: int) -> None:
        """The library's own state of each part, laid out as one tensor of each kind."""
        group = self._optimizer.param_groups[0]
        for index, part in enumerate(self._parts):
            self._optimizer.init_state(group, part, 0, index)
        states = [self._optimizer.state[part] for part in self._parts]
        for name in ("state1", "state2", "absmax1", "absmax2"):
            whole = self._state[name] = torch.cat([state[name] for state in states])
            views = whole.split([state[name].numel() for state in states])
            for state, view in zip(states, views, strict=True):
                state[name] = view
        for state in states:
            state["step"] = steps
