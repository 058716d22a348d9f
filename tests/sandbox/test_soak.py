"""A small soak; `soak.py` alone runs a large one."""

import pytest
from soak import faults, soak

pytestmark = pytest.mark.usefixtures("native_built")


async def test_boxes_that_ended_in_every_way_leave_nothing() -> None:
    report = await soak(400, seed=7)
    assert faults(report) == []
    seen = report["seen"]
    assert isinstance(seen, dict)
    assert all(seen.get(kind) for kind in ("ended", "late", "signal", "forked", "killed")), seen
