# pyright: reportMissingImports=false
"""Trains PPO of RLlib on a CartPole of a server, or without an address on a server of each env runner's own.

`gymhost serve` starts a server, `python rllib_ppo.py --server 127.0.0.1:50051` trains on it.
"""

import argparse
import time
from collections import deque
from statistics import fmean

import ray
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

from gymhost.trainers.rllib import configure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", default="CartPole-v1", help="the environment's id")
    parser.add_argument("--server", help="HOST:PORT, as the machines of the env runners know it")
    parser.add_argument("--iterations", type=int, default=60, help="the most iterations, of 4,000 steps each")
    parser.add_argument("--enough", type=float, default=450.0, help="the mean return of 100 episodes to stop at")
    parser.add_argument("--num-env-runners", type=int, default=1, help="processes that sample; 0: this one does")
    parser.add_argument("--num-envs", type=int, default=16, help="copies of the environment in each of them")
    parser.add_argument("--single", action="store_true", help="step each copy by itself, not all as one vector")
    arguments = parser.parse_args()

    ray.init(num_cpus=arguments.num_env_runners + 1, include_dashboard=False, log_to_driver=False)
    config = (
        configure(PPOConfig(), arguments.env, server=arguments.server, vector=not arguments.single)
        .env_runners(num_env_runners=arguments.num_env_runners, num_envs_per_env_runner=arguments.num_envs)
        .fault_tolerance(restart_failed_sub_environments=True)
        .training(train_batch_size_per_learner=4000, minibatch_size=250, num_epochs=6, vf_loss_coeff=0.01)
        .training(lr=[(0, 5e-4), (200_000, 5e-5)])
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[64], vf_share_layers=True))
        .debugging(seed=0)
    )
    algorithm = config.build_algo()
    started = time.monotonic()
    returns: deque[float] = deque(maxlen=100)
    for iteration in range(1, arguments.iterations + 1):
        sampled = algorithm.train()["env_runners"]
        # RLlib tells the mean of an iteration's episodes.
        returns.extend([sampled["episode_return_mean"]] * int(sampled["num_episodes"]))
        steps, seconds = int(sampled["num_env_steps_sampled_lifetime"]), time.monotonic() - started
        print(
            f"iteration {iteration:3}: {steps:7,} steps in {seconds:5.1f} s; mean return {returns[-1]:5.1f}, "
            f"of the last {len(returns)} episodes {fmean(returns):5.1f}",
            flush=True,
        )
        if len(returns) == 100 and fmean(returns) >= arguments.enough:
            break
    algorithm.stop()
    ray.shutdown()


if __name__ == "__main__":
    main()
