"""The client of the rollout service, which plays rollouts for trainers.

Example:
    requests = [RolloutRequest("gymhost/GuessNumber-v0", task=task) for task in range(64)]
    async with RolloutClient("cpu7:50052") as rollouts:
        async for trajectory in rollouts.run(requests, samples=8, key="run 3, step 17"):
            ...
"""

from gymhost.rollout.service.client import RolloutClient
from gymhost.rollout.service.job import Job
from gymhost.rollout.service.messages import GroupRules
from gymhost.rollout.service.reports import (
    EnvironmentRollouts,
    EnvironmentServerStatus,
    GeneratorStatus,
    JobStatus,
    OutcomeCount,
    RolloutStatus,
    ServiceStatus,
    StageSeconds,
)
from gymhost.rollout.service.submission import JobSettings

__all__ = [
    "EnvironmentRollouts",
    "EnvironmentServerStatus",
    "GeneratorStatus",
    "GroupRules",
    "Job",
    "JobSettings",
    "JobStatus",
    "OutcomeCount",
    "RolloutClient",
    "RolloutStatus",
    "ServiceStatus",
    "StageSeconds",
]
