"""Long silence, with clients that ping more often than gRPC's servers allow by default (S19)."""

from concurrent.futures import Future

import pytest

from support.silence import KEEPALIVES


@pytest.mark.timeout(120)
@pytest.mark.parametrize("keepalive_ms", KEEPALIVES)
def test_a_step_after_a_minute_of_silence_works(silent_clients: "dict[int, Future[int]]", keepalive_ms: int) -> None:
    # Over the stream from before: a GOAWAY would have ended it.
    assert silent_clients[keepalive_ms].result(110) == 1
