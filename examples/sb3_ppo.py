"""Trains Stable-Baselines3's PPO on CartPole until it is solved: a mean return of 475 over 100 episodes.

`python sb3_ppo.py --server HOST:PORT` has the environments on a server, `python sb3_ppo.py` on one of its own.
"""

import argparse
import time

import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import EvalCallback, StopTrainingOnRewardThreshold
from stable_baselines3.common.evaluation import evaluate_policy

from gymhost.trainers.sb3 import make_vec_env


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", help="HOST:PORT; without it an embedded server is started")
    parser.add_argument("--steps", type=int, default=200_000, help="steps after which to give up")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)  # which is faster, with a network of this size

    env = make_vec_env("CartPole-v1", n_envs=8, seed=args.seed, server=args.server)
    evaluation_env = make_vec_env("CartPole-v1", n_envs=20, seed=args.seed + 1000, server=args.server)
    evaluation = EvalCallback(
        evaluation_env,
        callback_on_new_best=StopTrainingOnRewardThreshold(495.0, verbose=1),  # the verdict is that of other episodes
        n_eval_episodes=100,
        eval_freq=1024,  # calls of the environments, of 8 steps each
    )
    model = PPO(
        "MlpPolicy",
        env,
        n_steps=32,
        batch_size=256,
        n_epochs=20,
        gae_lambda=0.8,
        gamma=0.98,
        learning_rate=lambda remaining: 1e-3 * remaining,
        clip_range=lambda remaining: 0.2 * remaining,
        seed=args.seed,
        device="cpu",
    )
    began = time.perf_counter()
    model.learn(args.steps, callback=evaluation)
    seconds = time.perf_counter() - began

    returns, _ = evaluate_policy(model, evaluation_env, 100, return_episode_rewards=True)
    mean = float(np.mean(returns))
    print(f"{'Solved' if mean >= 475.0 else 'Not solved'} after {model.num_timesteps} steps, {seconds:.1f} s")
    print(f"Mean return of 100 episodes more: {mean:.1f} (from {np.min(returns):.0f} to {np.max(returns):.0f})")
    env.close()
    evaluation_env.close()


if __name__ == "__main__":
    main()
