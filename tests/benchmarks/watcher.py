"""Who watches a server as the dashboard, top and Prometheus do: `python -m tests.benchmarks.watcher ADDRESS`."""

import asyncio
import sys
import time

from gymhost.client.operations import Operations

# Seconds between two looks.
INTERVAL = 5.0


async def watch(address: str) -> None:
    """Looks at all that there is, every few seconds, for ever."""
    seen = 0.0
    async with Operations(address) as operations:
        while True:
            await operations.overview()
            history = await operations.history(seen)
            seen = max((point.time for point in history.points), default=seen)
            await operations.live()
            await operations.failures()
            await operations.metrics()
            print(time.time(), flush=True)
            await asyncio.sleep(INTERVAL)


if __name__ == "__main__":
    asyncio.run(watch(sys.argv[1]))
