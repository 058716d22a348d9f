"""Which experts a mixture sends each token to: noted when sampling, and followed when training.

Sampler and trainer round differently, so near a tie they choose other experts, and the trainer
would learn about a computation that did not take place. With the sampler's choices it computes the
weights of the same experts again, and these have a gradient (router replay: Ma et al. 2025, arXiv
2510.11370).
"""

import threading
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch

# Routers that take the softmax over all experts and then the largest.
ROUTERS = ("MixtralTopKRouter", "OlmoeTopKRouter", "Qwen2MoeTopKRouter", "Qwen3MoeTopKRouter")


class Routed(Protocol):
    """Tokens that know their experts."""

    def routes(self, layers: int, k: int) -> torch.Tensor | None:
        """The experts of each, [N, layers, k]; -1 where the router decides."""
        ...


class Routes:
    """The routers of a model, one a layer that has experts; none where they are of another kind."""

    def __init__(self, model: Any) -> None:
        self._routers = [m for m in model.modules() if type(m).__name__ in ROUTERS]
        self._seen = threading.local()  # samplers share a model between threads
        for router in self._routers:
            router.given, router.seen = None, self._seen
            router.forward = partial(_route, router)

    def __bool__(self) -> bool:
        return bool(self._routers)

    def follow(self, pack: "Routed") -> None:
        """Send the tokens that come next to the experts that their samples went to."""
        if not self._routers:
            return
        routes = pack.routes(len(self._routers), self._routers[0].top_k)
        for layer, router in enumerate(self._routers):
            router.given = None if routes is None else routes[:, layer]

    def note(self) -> None:
        """Begin to note the experts of the tokens that come next in this thread."""
        self._seen.chosen = []

    def noted(self) -> torch.Tensor:
        """The experts of the tokens of the forward pass since `note`, [N, layers, k]."""
        return torch.stack(self._seen.__dict__.pop("chosen"), 1)


def _route(router: Any, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A router's own forward pass, with the experts that it was given."""
    logits, scores, chosen = type(router).forward(router, hidden)
    if router.given is not None:
        chosen = torch.where(router.given < 0, chosen, router.given)
        weights = logits.float().softmax(-1).gather(-1, chosen)
        if getattr(router, "norm_topk_prob", True):
            weights = weights / weights.sum(-1, keepdim=True)
        scores = weights.to(scores.dtype)
    if (noted := getattr(router.seen, "chosen", None)) is not None:
        noted.append(chosen)
    return logits, scores, chosen


def packed_routes(routes: torch.Tensor) -> bytes:
    """Experts [N, layers, k] as bytes, two for each."""
    return routes.to("cpu", torch.int16).numpy().tobytes()


def unpacked_routes(routes: bytes, layers: int, k: int) -> np.ndarray:
    """The reverse: [N, layers, k]."""
    return np.frombuffer(routes, np.int16).reshape(-1, layers, k)
