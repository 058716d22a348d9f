"""The nouns of the house: frozen, serialisable values without I/O. Imports nothing of ours."""

from practicum.core.episode import (
    Artifact,
    Episode,
    Event,
    Kept,
    Stop,
    Submission,
    TokenRecord,
    Turn,
)
from practicum.core.errors import (
    EngineError,
    GraderError,
    ModelError,
    PracticumError,
    RecipeError,
    SandboxError,
    StoreError,
)
from practicum.core.hashing import content_hash
from practicum.core.message import Message, Part, Text, ToolCall
from practicum.core.outcome import EFFECTS, Effect, Outcome
from practicum.core.sample import Group, Sample
from practicum.core.score import Score, ScorePart
from practicum.core.task import File, Limits, Task

__all__ = [
    "EFFECTS",
    "Artifact",
    "Effect",
    "EngineError",
    "Episode",
    "Event",
    "File",
    "GraderError",
    "Group",
    "Kept",
    "Limits",
    "Message",
    "ModelError",
    "Outcome",
    "Part",
    "PracticumError",
    "RecipeError",
    "Sample",
    "SandboxError",
    "Score",
    "ScorePart",
    "Stop",
    "StoreError",
    "Submission",
    "Task",
    "Text",
    "TokenRecord",
    "ToolCall",
    "Turn",
    "content_hash",
]
