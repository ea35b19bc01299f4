"""Issue 9: five processes, of which each is killed while a batch is running; the short form of `five_processes`."""

from pathlib import Path

import pytest

from support.five_processes import VICTIMS, run

pytestmark = pytest.mark.heavy


@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore")
def test_nothing_is_lost_and_nothing_seen_twice_whoever_is_killed(tmp_path: Path) -> None:
    seen = run(tmp_path, victims=VICTIMS, batch=32)
    seen.check(steps=19, batch=32)
    # It was in the midst of a batch that the environment server died: rollouts of it were begun again.
    of_step = {batch["step"]: batch for batch in seen.batches}
    assert max(of_step[3]["attempts"]) > 1
    assert seen.jobs[3].retries > 0
