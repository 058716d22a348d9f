"""Episodes: a policy practises tasks in boxes, and what it leaves behind is graded elsewhere."""

from practicum.rollout.branch import branch
from practicum.rollout.grade import grade, needs_box
from practicum.rollout.play import Job, Keep, play, play_many
from practicum.rollout.script import ScriptPolicy

__all__ = ["Job", "Keep", "ScriptPolicy", "branch", "grade", "needs_box", "play", "play_many"]
