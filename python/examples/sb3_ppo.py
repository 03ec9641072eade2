"""Trains Stable-Baselines3's PPO on one of Grove's games.

    pip install stable-baselines3
    python sb3_ppo.py --game Fruit --steps 600000
"""

import argparse

import gymnasium
import grove_rl  # noqa: F401  (registers the environments)
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--game", default="Fruit")
    parser.add_argument("--steps", type=int, default=600_000)
    parser.add_argument("--num-envs", type=int, default=16)
    options = parser.parse_args()
    name = f"grove/{options.game}-v0"
    envs = make_vec_env(
        name, n_envs=options.num_envs, seed=0, env_kwargs={"render_mode": None}
    )
    model = PPO("MlpPolicy", envs, n_steps=128, batch_size=256, gamma=0.98, device="cpu", seed=0)
    model.learn(options.steps)
    mean, _ = evaluate_policy(model, Monitor(gymnasium.make(name)), n_eval_episodes=100)
    print(f"mean return of 100 episodes: {mean:.2f}")


if __name__ == "__main__":
    main()
