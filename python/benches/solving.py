"""Time until an environment of Gymnasium is solved: Grove and, if installed, Stable-Baselines3's PPO.

Both are evaluated while they train, greedily and in the time that is measured, and stop at the first mean return over 50
episodes that solves the environment; that policy is then evaluated over 100 others. CPU time is that of all threads.
Each uses its settings below, or else its defaults. PPO has one PyTorch thread, with which it is fastest here.

    python solving.py CartPole-v1 --seeds 1 2 3
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

import grove_rl


class DictCartPole(gymnasium.Wrapper):
    """CartPole whose observation is a dictionary."""

    def __init__(self) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        box = self.env.observation_space
        self.observation_space = spaces.Dict({
            "position": spaces.Box(box.low[:2], box.high[:2], dtype=np.float32),
            "pole": spaces.Box(box.low[2:], box.high[2:], dtype=np.float32),
        })

    def reset(self, **arguments: Any) -> Any:
        obs, info = self.env.reset(**arguments)
        return self._split(obs), info

    def step(self, action: Any) -> Any:
        obs, *rest = self.env.step(action)
        return self._split(obs), *rest

    @staticmethod
    def _split(obs: Any) -> dict[str, Any]:
        return {"position": obs[:2], "pole": obs[2:]}


ENVS: dict[str, tuple[Callable[[], gymnasium.Env], float]] = {
    "CartPole-v1": (lambda: gymnasium.make("CartPole-v1"), 475.0),
    "Acrobot-v1": (lambda: gymnasium.make("Acrobot-v1"), -100.0),
    "dict": (DictCartPole, 475.0),
}

#: Settings of PPO: those of RL Baselines3 Zoo, which are tuned for each.
PPO_SETTINGS: dict[str, dict[str, Any]] = {
    "CartPole-v1": {
        "n_envs": 8, "n_steps": 32, "batch_size": 256, "gae_lambda": 0.8, "gamma": 0.98, "n_epochs": 20,
        "ent_coef": 0.0, "learning_rate": 1e-3, "clip_range": 0.2,
    },
    "Acrobot-v1": {"n_envs": 16, "n_steps": 256, "gae_lambda": 0.94, "gamma": 0.99, "n_epochs": 4, "ent_coef": 0.0},
}
PPO_SETTINGS["dict"] = PPO_SETTINGS["CartPole-v1"]

EPISODES = 50


def play(env: gymnasium.Env, act: Callable[[Any], Any], episodes: int, seed: int) -> float:
    """Returns the mean return of some episodes."""
    total = 0.0
    for episode in range(episodes):
        obs, _ = env.reset(seed=seed + episode)
        ended = False
        while not ended:
            obs, reward, terminated, truncated, _ = env.step(act(obs))
            total += float(reward)
            ended = terminated or truncated
    return total / episodes


class Watch:
    """A stopwatch of elapsed and of CPU time."""

    def __init__(self) -> None:
        self._begun = time.perf_counter(), time.process_time()

    def read(self) -> tuple[float, float]:
        """Returns the seconds since the start: elapsed, and of the CPU."""
        return time.perf_counter() - self._begun[0], time.process_time() - self._begun[1]


Result = tuple[tuple[float, float], float]


def by_grove(name: str, seed: int, settings: dict[str, Any]) -> Result:
    """Returns the time and the mean return of the policy at the end."""
    make, goal = ENVS[name]
    taken = None

    def follow(record: dict[str, Any]) -> bool:
        nonlocal taken
        if record.get("evaluation", {}).get("mean_score", -np.inf) < goal:
            return True
        taken = watch.read()
        return False

    with tempfile.TemporaryDirectory() as folder:
        watch = Watch()
        report = grove_rl.train(
            make,
            max_episode_steps=500,
            run_dir=f"{folder}/run",
            seed=seed,
            callback=follow,
            checkpoint={"eval_every": 1, "eval_episodes": EPISODES},
            **settings,
        )
        policy = report.policy()
        score = play(make(), policy, 100, 10_000)
    return taken or watch.read(), score


def by_sb3(name: str, seed: int, processes: bool) -> Result:
    """Returns the time and the mean return of the policy at the end. Environments are processes of their own, or not."""
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import EvalCallback, StopTrainingOnRewardThreshold
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    # Networks of this size are slower with several threads.
    torch.set_num_threads(1)
    make, goal = ENVS[name]
    settings = dict(PPO_SETTINGS[name])
    count = settings.pop("n_envs")
    watch = Watch()
    kind = SubprocVecEnv if processes else DummyVecEnv
    envs = make_vec_env(make, n_envs=count, seed=seed, vec_env_cls=kind)
    evaluation = EvalCallback(
        make_vec_env(make, n_envs=8, seed=1000 + seed),
        callback_on_new_best=StopTrainingOnRewardThreshold(goal),
        n_eval_episodes=EPISODES,
        # As often as Grove: after every iteration or 4,096 steps.
        eval_freq=max(4096 // count, settings["n_steps"]),
        verbose=0,
    )
    policy = "MultiInputPolicy" if name == "dict" else "MlpPolicy"
    model = PPO(policy, envs, device="cpu", seed=seed, **settings)
    model.learn(2_000_000, callback=evaluation)
    taken = watch.read()
    envs.close()
    score = play(make(), lambda obs: model.predict(obs, deterministic=True)[0], 100, 10_000)
    return taken, score


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("env", choices=sorted(ENVS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="settings of Grove")
    parser.add_argument("--processes", type=int, help="processes of Grove's environments; PPO's are then one each")
    parser.add_argument("--only", choices=["grove", "sb3"])
    options = parser.parse_args()
    settings = {name: _number(value) for name, value in (pair.split("=") for pair in options.set)}
    if options.processes:
        settings["num_processes"] = options.processes
    trainers = {"grove": lambda seed: by_grove(options.env, seed, settings)}
    if find_spec("stable_baselines3"):
        trainers["sb3"] = lambda seed: by_sb3(options.env, seed, bool(options.processes))
    for trainer, train in trainers.items():
        if options.only not in (None, trainer):
            continue
        times = []
        for seed in options.seeds:
            taken, score = train(seed)
            times.append(taken)
            elapsed, cpu = taken
            print(
                f"{trainer:6} seed {seed}: {elapsed:6.1f} s, {cpu:6.1f} s of CPU, mean return {score:.1f}",
                flush=True,
            )
        elapsed, cpu = np.median(times, axis=0)
        print(f"{trainer:6} median: {elapsed:.1f} s, {cpu:.1f} s of CPU", flush=True)


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


if __name__ == "__main__":
    main()
