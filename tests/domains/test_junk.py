"""Whatever a candidate leaves behind, grading gives a score at the floor and never raises."""

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from practicum.core import Artifact, Submission
from practicum.domains import domain_names, get_domain
from practicum.sandbox.bubblewrap import BubblewrapBoxes

RUNS_CODE = {"shell_script", "pytest_repair", "build_repair"}

ARTIFACTS = st.builds(
    Artifact,
    data=st.binary(max_size=200) | st.text(max_size=80).map(str.encode),
    mode=st.integers(0, 0o7777),
    kind=st.sampled_from(["file", "dir", "symlink"]),
    truncated=st.booleans(),
)


class NoBoxes:
    """Stands where no box may be opened."""

    async def open(self, *_, **__):
        raise AssertionError("grading data needs no box")

    async def close(self): ...


@pytest.mark.parametrize("name", [name for name in domain_names() if name not in RUNS_CODE])
@given(data=st.data())
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
def test_junk_scores_nothing(name, data):
    domain = get_domain(name)
    task = domain.make(data.draw(st.integers(0, 50)), data.draw(st.integers(1, 3)))
    wanted = [path for change in task.truth.get("wanted", []) for path, *_ in change]
    paths = [*task.artifacts, *wanted, *task.truth.get("expected", {"other": ""})]
    left = data.draw(st.dictionaries(st.sampled_from(paths), ARTIFACTS)) if task.artifacts else {}
    answer = data.draw(st.text(max_size=60))
    score = asyncio.run(domain.grade(task, Submission(left, answer), NoBoxes()))
    assert score.value == 0.0


@pytest.mark.parametrize("name", sorted(RUNS_CODE))
async def test_junk_code_scores_nothing(name):
    domain, boxes = get_domain(name), BubblewrapBoxes(max_running=2)
    junk = [b"", b"\x00\xff" * 50, b"]]}}((", b"exit 0\n", b"#!/bin/false", "é\u2028".encode()]
    for seed, data in enumerate(junk):
        task = domain.make(seed, 1 + seed % 3)
        left = {path: Artifact(data, 0o000) for path in task.artifacts}
        score = await domain.grade(task, Submission(left), boxes)
        assert score.value == 0.0, (data, score)
    await boxes.close()
