"""Steps a second of 4,096 games of CartPole with random actions: Grove, Gymnasium and, if installed, EnvPool.

    python stepping.py [--num-envs 4096] [--seconds 3]
"""

import argparse
import time
from collections.abc import Callable
from importlib.util import find_spec

import gymnasium
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv

import grove_rl


def rate(step: Callable[[np.ndarray], object], num_envs: int, seconds: float) -> float:
    """Returns the best of three measurements of the steps a second of all environments."""
    draws = np.random.default_rng(0).integers(2, size=(64, num_envs))
    best = 0.0
    for _ in range(3):
        steps, begun = 0, time.perf_counter()
        while (taken := time.perf_counter() - begun) < seconds:
            for actions in draws:
                step(actions)
            steps += len(draws) * num_envs
        best = max(best, steps / taken)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num-envs", type=int, default=4096)
    parser.add_argument("--seconds", type=float, default=3)
    options = parser.parse_args()
    count = options.num_envs
    rates = {}

    def measure(name: str, step: Callable[[np.ndarray], object]) -> None:
        rates[name] = rate(step, count, options.seconds)

    for copy in (True, False):
        envs = grove_rl.make_vec("cartpole", count, copy=copy)
        envs.reset(seed=0)
        measure(f"grove_rl.make_vec, copy={copy}", envs.step)
    theirs = CartPoleVectorEnv(count)
    theirs.reset(seed=0)
    measure(f"gymnasium {gymnasium.__version__}, CartPoleVectorEnv", theirs.step)
    if find_spec("envpool"):
        import envpool

        pool = envpool.make("CartPole-v1", env_type="gymnasium", num_envs=count)
        pool.reset()
        measure(f"envpool {envpool.__version__}", pool.step)
    first = next(iter(rates.values()))
    for name, found in rates.items():
        print(f"{name:40} {found / 1e6:8.2f} M steps/s {first / found:6.1f}")


if __name__ == "__main__":
    main()
