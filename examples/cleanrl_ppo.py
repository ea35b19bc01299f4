"""PPO in one file, on any environment with discrete actions and observations that are plain vectors.

`python cleanrl_ppo.py --server HOST:PORT` has the environments on a server, `python cleanrl_ppo.py` on one of its own.
It ends when the mean return of the last 100 episodes is above --target, and then plays 100 more with the best actions.

Unless told otherwise, Gymnasium's vector environments reset a copy in the step after the one that ended its episode.
That step takes no action and gives no reward, so there is nothing to learn from it, and `played` leaves it out. It
starts from the last observation of the episode before, by which an episode is valued that a time limit cut short.
"""

import argparse
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import VectorEnv
from torch import Tensor, nn
from torch.distributions import Categorical

from gymhost.client import make_vec


@dataclass
class Args:
    server: str | None  # HOST:PORT, or None for an embedded server
    env: str
    seed: int
    steps: int  # after which to give up
    target: float
    num_envs: int = 8
    rollout_length: int = 64
    minibatches: int = 4
    epochs: int = 8
    learning_rate: float = 1e-3
    gamma: float = 0.98
    gae_lambda: float = 0.9
    clip: float = 0.2
    entropy_weight: float = 0.0
    value_weight: float = 0.5
    max_gradient: float = 0.5


class Agent(nn.Module):
    def __init__(self, observation_size: int, actions: int) -> None:
        super().__init__()
        self.actor = network(observation_size, actions, last_gain=0.01)
        self.critic = network(observation_size, 1, last_gain=1.0)

    def value(self, observations: Tensor) -> Tensor:
        return self.critic(observations).squeeze(-1)

    def policy(self, observations: Tensor) -> Categorical:
        return Categorical(logits=self.actor(observations))


def network(inputs: int, outputs: int, last_gain: float) -> nn.Sequential:
    def layer(inputs: int, outputs: int, gain: float) -> nn.Linear:
        linear = nn.Linear(inputs, outputs)
        nn.init.orthogonal_(linear.weight, gain)
        nn.init.zeros_(linear.bias)
        return linear

    root = 2**0.5
    return nn.Sequential(
        layer(inputs, 64, root), nn.Tanh(), layer(64, 64, root), nn.Tanh(), layer(64, outputs, last_gain)
    )


class Rollout:
    """What the copies did in so many steps, as tensors of [step, copy]."""

    def __init__(self, length: int, num_envs: int, observation_size: int) -> None:
        shape = (length, num_envs)
        self.observations = torch.zeros((*shape, observation_size))
        self.actions = torch.zeros(shape, dtype=torch.int64)
        self.log_probs, self.values, self.rewards = torch.zeros(shape), torch.zeros(shape), torch.zeros(shape)
        self.terminations, self.dones, self.played = (torch.zeros(shape, dtype=torch.bool) for _ in range(3))

    def advantages(self, last_value: Tensor, gamma: float, gae_lambda: float) -> Tensor:
        advantages = torch.zeros_like(self.rewards)
        next_value, following = last_value, torch.zeros_like(last_value)
        for step in reversed(range(len(self.rewards))):
            # What terminated is worth nothing from here on; what was truncated is worth what its last observation is.
            expected = self.rewards[step] + gamma * next_value * ~self.terminations[step]
            following = expected - self.values[step] + gamma * gae_lambda * following * ~self.dones[step]
            advantages[step] = following
            next_value = self.values[step]
        return advantages


class Player:
    """Plays vector environments, rollout after rollout, and keeps count of episodes."""

    def __init__(self, envs: VectorEnv[Any, Any, Any], seed: int) -> None:
        self.envs = envs
        self.returns: deque[float] = deque(maxlen=100)
        self.observations = torch.as_tensor(envs.reset(seed=seed)[0])
        self.over = np.zeros(envs.num_envs, np.bool_)
        self._so_far = np.zeros(envs.num_envs)

    def step(self, actions: Tensor) -> tuple[Any, Any]:
        """Takes a step, and returns rewards and terminations."""
        observations, rewards, terminations, truncations, _ = self.envs.step(actions.numpy())
        self.observations = torch.as_tensor(observations)
        self.over = terminations | truncations
        self._so_far += rewards
        self.returns.extend(self._so_far[self.over].tolist())
        self._so_far[self.over] = 0.0
        return rewards, terminations

    @torch.no_grad()
    def collect(self, agent: Agent, rollout: Rollout) -> None:
        for step in range(len(rollout.rewards)):
            policy = agent.policy(self.observations)
            actions = policy.sample()
            rollout.observations[step] = self.observations
            rollout.played[step] = torch.from_numpy(~self.over)
            rollout.actions[step] = actions
            rollout.log_probs[step] = policy.log_prob(actions)
            rollout.values[step] = agent.value(self.observations)
            rewards, terminations = self.step(actions)
            rollout.rewards[step] = torch.from_numpy(rewards)
            rollout.terminations[step] = torch.from_numpy(terminations)
            rollout.dones[step] = torch.from_numpy(self.over)


def update(agent: Agent, optimizer: torch.optim.Optimizer, rollout: Rollout, last_value: Tensor, args: Args) -> None:
    advantages = rollout.advantages(last_value, args.gamma, args.gae_lambda)
    returns = advantages + rollout.values
    played = rollout.played
    observations, actions, old_log_probs = (
        rollout.observations[played],
        rollout.actions[played],
        rollout.log_probs[played],
    )
    advantages, returns = advantages[played], returns[played]
    for _ in range(args.epochs):
        for batch in torch.randperm(len(actions)).tensor_split(args.minibatches):
            policy = agent.policy(observations[batch])
            advantage = advantages[batch]
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
            ratio = (policy.log_prob(actions[batch]) - old_log_probs[batch]).exp()
            gain = torch.min(ratio * advantage, ratio.clamp(1 - args.clip, 1 + args.clip) * advantage).mean()
            value_loss = 0.5 * (agent.value(observations[batch]) - returns[batch]).square().mean()
            loss = -gain + args.value_weight * value_loss - args.entropy_weight * policy.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), args.max_gradient)
            optimizer.step()


def train(envs: VectorEnv[Any, Any, Any], args: Args) -> Agent:
    assert isinstance(envs.single_observation_space, Box)
    assert isinstance(envs.single_action_space, Discrete)
    (size,) = envs.single_observation_space.shape
    agent = Agent(size, int(envs.single_action_space.n))
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
    rollout = Rollout(args.rollout_length, args.num_envs, size)
    player = Player(envs, args.seed)
    began = time.perf_counter()
    for number in range(1, args.steps // (args.rollout_length * args.num_envs) + 1):
        player.collect(agent, rollout)
        with torch.no_grad():
            last_value = agent.value(player.observations)
        update(agent, optimizer, rollout, last_value, args)
        mean = float(np.mean(player.returns)) if player.returns else 0.0
        solved = len(player.returns) == 100 and mean >= args.target
        if number % 5 == 0 or solved:
            steps = number * args.rollout_length * args.num_envs
            seconds = time.perf_counter() - began
            print(f"{steps:7} steps  {seconds:5.1f} s  mean return {mean:6.1f}", flush=True)
        if solved:
            print("Solved")
            break
    return agent


@torch.no_grad()
def evaluate(agent: Agent, envs: VectorEnv[Any, Any, Any], seed: int) -> float:
    """The mean return of 100 episodes, played with the most probable actions, as many by each copy."""
    player = Player(envs, seed)
    # Copies with short episodes would have more than their share: each plays the same number.
    left = np.full(envs.num_envs, 100 // envs.num_envs)
    total = 0.0
    while left.any():
        rewards, _ = player.step(agent.actor(player.observations).argmax(-1))
        total += float(rewards[left > 0].sum())
        left[player.over & (left > 0)] -= 1
    return total / 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", help="HOST:PORT; without it an embedded server is started")
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=500_000, help="steps after which to give up")
    parser.add_argument("--target", type=float, default=475.0)
    args = Args(**vars(parser.parse_args()))
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)  # which is faster, with networks of this size

    envs = make_vec(args.env, args.num_envs, server=args.server)
    agent = train(envs, args)
    envs.close()
    envs = make_vec(args.env, 20, server=args.server)
    print(f"Mean return of 100 episodes with the best actions: {evaluate(agent, envs, args.seed + 1000):.1f}")
    envs.close()


if __name__ == "__main__":
    main()
