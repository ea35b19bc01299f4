"""Real vLLM servers on a CPU: whole games, new weights in the middle of them, and a server that is killed."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from gymhost.rollout import GeneratorError, PromptTooLong, Sampling, Trajectory
from gymhost.rollout.generators import DiskWeights, GeneratorPool, InFlight, VllmServerGenerator
from support.games import LENGTH, play_games, played
from support.models import logprobs_of, player, save, shifted
from support.recompute import CLOSE, check_rows
from support.server import until
from support.vllm_process import VllmProcess

# vLLM warns of much that is not ours; two of it start at once.
pytestmark = [pytest.mark.heavy, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]
