"""Many clients that vanish, and many sessions on one server: `python -m chaos.storms` runs both in full."""

import pytest

from chaos import storms


@pytest.mark.timeout(120)
async def test_clients_that_connect_and_vanish_leave_nothing() -> None:
    figures = await storms.vanish(200)
    assert figures.connections == 0
    assert figures.until_clean < 30.0
    assert figures.growth < 40.0


@pytest.mark.timeout(120)
async def test_thousands_of_sessions_are_open_and_stepped_on_one_server() -> None:
    figures = await storms.hold(2000, 2)
    assert figures.steps == 2 * 2000
    # A session is some kilobytes, not a thread, a process or a connection.
    assert figures.front_kib < 50.0
    assert figures.workers_kib < 100.0
