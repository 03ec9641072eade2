"""Built-in games as environments of Gymnasium."""

import copy
import pickle
import threading
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

import grove_rl

GAMES = grove_rl.games()


@pytest.mark.parametrize("game", GAMES)
@pytest.mark.filterwarnings("ignore:.*A Box observation space (min|max)imum value is.*")
def test_gymnasium_accepts_every_game(game: str) -> None:
    env = gymnasium.make(f"grove/{game.capitalize()}-v0")
    if "action_mask" in env.reset(seed=0)[1]:
        pytest.skip("the checker takes illegal actions")
    check_env(env.unwrapped, skip_render_check=True)


@pytest.mark.parametrize("game", ["cartpole", "catch", "fruit"])
def test_a_batch_plays_as_single_environments_do(game: str) -> None:
    single = [grove_rl.GroveEnv(game) for _ in range(5)]
    envs = grove_rl.make_vec(game, 5, autoreset_mode="SameStep")
    obs, _ = envs.reset(seed=[10, 11, 12, 13, 14])
    for env, row, seed in zip(single, obs, range(10, 15), strict=True):
        np.testing.assert_array_equal(env.reset(seed=seed)[0], row)
    live = np.ones(5, bool)
    rng = np.random.default_rng(0)
    for _ in range(40):
        actions = rng.integers(envs.single_action_space.n, size=5)
        obs, rewards, terminated, truncated, infos = envs.step(actions)
        for i in np.flatnonzero(live):
            own, reward, ended, cut, info = single[i].step(actions[i])
            assert (reward, ended, cut) == (rewards[i], terminated[i], truncated[i])
            if ended or cut:
                np.testing.assert_array_equal(infos["final_obs"][i], own)
                assert infos["score"][i] == infos["final_info"]["score"][i] == info["score"]
                live[i] = False
            else:
                np.testing.assert_array_equal(obs[i], own)


def test_autoreset_modes_differ_in_the_step_that_resets() -> None:
    def played(mode: AutoresetMode) -> tuple[grove_rl.GroveVectorEnv, list]:
        envs = grove_rl.make_vec("catch", 3, autoreset_mode=mode)
        envs.reset(seed=1)
        steps = []
        while not steps or not (steps[-1][2] | steps[-1][3]).any():
            steps.append(envs.step(np.ones(3, int)))
        return envs, steps

    same, next_step = played(AutoresetMode.SAME_STEP), played(AutoresetMode.NEXT_STEP)
    np.testing.assert_array_equal(same[1][-1][4]["final_obs"], next_step[1][-1][0])
    reset, rewards, terminated, _, _ = next_step[0].step(np.zeros(3, int))
    np.testing.assert_array_equal(reset, same[1][-1][0])
    assert not rewards.any() and not terminated.any()
    disabled, _ = played(AutoresetMode.DISABLED)
    with pytest.raises(ValueError, match="has ended; reset it"):
        disabled.step(np.ones(3, int))
    disabled.reset(options={"reset_mask": np.ones(3, bool)})
    disabled.step(np.ones(3, int))
    first, _ = disabled.reset(seed=5)
    disabled.step(np.ones(3, int))
    some = np.array([True, False, True])
    again, _ = disabled.reset(seed=5, options={"reset_mask": some})
    np.testing.assert_array_equal((again == first).all(axis=1), some)
    disabled.step(np.ones(3, int))


def test_seeds_repeat_and_parameters_change_the_game() -> None:
    envs = grove_rl.make_vec("catch", 4, rows=6, columns=3)
    first, _ = envs.reset(seed=5)
    np.testing.assert_array_equal(envs.reset(seed=5)[0], first)
    assert not np.array_equal(envs.reset(seed=6)[0], first)

    def later(seed: int | list[int], **options: np.ndarray) -> np.ndarray:
        fresh = grove_rl.make_vec("recall", 4)
        fresh.reset(seed=seed, options=options)
        return fresh.reset()[0]

    for seed in (5, [5, 6, 7, 1 << 63]):
        np.testing.assert_array_equal(later(seed), later(seed, reset_mask=np.ones(4, bool)))
    assert not np.array_equal(later([5, 6, 7, 8]), later([5, 6, 7, 9]))
    board = grove_rl.make_vec("catch", 1, rows=6, columns=3, observation="board")
    assert board.single_observation_space.shape == (18,)
    with pytest.raises(ValueError, match="catch.rows"):
        grove_rl.make_vec("catch", 1, rows=1)
    with pytest.raises(ValueError, match="unknown game `chess`"):
        grove_rl.make_vec("chess", 1)
    with pytest.raises(TypeError, match="grove record"):
        grove_rl.GroveEnv("catch", render_mode="rgb_array")


def test_wrong_actions_are_refused() -> None:
    envs = grove_rl.make_vec("catch", 2)
    envs.reset(seed=0)
    for actions in ([0], [0, 3], [-1, 0]):
        with pytest.raises(ValueError, match="action"):
            envs.step(np.array(actions))


def test_environments_are_used_by_one_thread_at_a_time() -> None:
    envs = grove_rl.make_vec("fruit", 1 << 16)
    assert repr(envs) == "GroveVectorEnv('fruit', num_envs=65536)"
    envs.reset(seed=0)
    failures: list[RuntimeError] = []

    def step() -> None:
        for _ in range(20):
            try:
                envs.step(np.zeros(envs.num_envs, int))
            except RuntimeError as error:
                failures.append(error)

    threads = [threading.Thread(target=step) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures and all("another thread is stepping these environments" in str(error) for error in failures)
    envs.step(np.zeros(envs.num_envs, int))


def test_steps_return_new_arrays_unless_told_otherwise() -> None:
    envs = grove_rl.make_vec("cartpole", 2)
    envs.reset(seed=0)
    assert envs.step(np.zeros(2, int))[0] is not envs.step(np.zeros(2, int))[0]
    reused = grove_rl.make_vec("cartpole", 2, copy=False)
    reused.reset(seed=0)
    assert reused.step(np.zeros(2, int))[0] is reused.step(np.zeros(2, int))[0]


def test_pickled_states_must_fit_the_game() -> None:
    games = grove_rl.GroveEnv("catch")._games
    for states, words in [(b"", "have 0 words, but must have .* batch of 1 of catch"), (b"12345", "not a whole number of words")]:
        with pytest.raises(ValueError, match=words):
            games.__setstate__(states)


def pickled(envs: Any) -> Any:
    return pickle.loads(pickle.dumps(envs))


@pytest.mark.parametrize("copied", [copy.deepcopy, pickled])
@pytest.mark.parametrize("copies", [True, False])
def test_a_copy_goes_on_by_itself(copies: bool, copied: Callable[[Any], Any]) -> None:
    envs = grove_rl.make_vec("catch", 3, copy=copies, rows=9)
    envs.reset(seed=0)
    envs.step(np.zeros(3, int))
    other = copied(envs)
    for _ in range(12):
        obs, rewards, terminated, truncated, _ = envs.step(np.ones(3, int))
        ended = terminated | truncated
        again, same_rewards, terminated, truncated, _ = other.step(np.ones(3, int))
        np.testing.assert_array_equal(again, obs)
        np.testing.assert_array_equal(same_rewards, rewards)
        np.testing.assert_array_equal(terminated | truncated, ended)
    np.testing.assert_array_equal(other.reset()[0], envs.reset()[0])
    env = gymnasium.make("grove/Fruit-v0")
    env.reset(seed=0)
    env.step(1)
    twin = copied(env)
    for _ in range(2):
        np.testing.assert_array_equal(twin.step(1)[0], env.step(1)[0])
    # Levels of resets without a seed follow from the seed before.
    np.testing.assert_array_equal(twin.reset()[0], env.reset()[0])


def test_games_take_whole_numbers_alone() -> None:
    envs, env = grove_rl.make_vec("catch", 4), grove_rl.GroveEnv("catch")
    with pytest.raises(ResetNeeded, match="before its first step"):
        envs.step(np.ones(4, int))
    with pytest.raises(ResetNeeded, match="before its first step"):
        env.step(1)
    with pytest.raises(ResetNeeded, match="reset all environments"):
        envs.reset(options={"reset_mask": np.array([True, False, False, False])})
    for seed in (1.5, True, -1, "1", 1 << 64, np.array(3), np.timedelta64(3)):
        with pytest.raises(ValueError, match="a seed is .* but must be a whole number"):
            envs.reset(seed=seed)
        with pytest.raises(ValueError, match="a seed is .* but must be a whole number"):
            env.reset(seed=seed)
    with pytest.raises(ValueError, match="a seed is 0.5"):
        envs.reset(seed=[1, 2, 3, 0.5])
    envs.reset(seed=np.int64(1))
    env.reset(seed=1)
    for actions in ([0.5, 1, 1, 1], [1.0] * 4, ["1"] * 4, [np.nan] * 4, [True] * 4, [None] * 4, np.ones((4, 1), int)):
        with pytest.raises(ValueError, match="actions have shape .* but must be 4 whole numbers"):
            envs.step(actions)
    with pytest.raises(ValueError, match="action 9223372036854775808 of environment 2 is none of catch's"):
        envs.step(np.array([0, 1, 1 << 63, 2], np.uint64))
    hidden = np.ma.array([0, 1, 2, 1], mask=[0, 0, 1, 0])
    with pytest.raises(ValueError, match="the batch of actions has a masked number"):
        envs.step(hidden)
    with pytest.raises(ValueError, match="`reset_mask` has a masked number"):
        envs.reset(options={"reset_mask": hidden > 0})
    with pytest.raises(ValueError, match="the action has a masked number"):
        env.step(np.ma.array(1, mask=True))
    for action in (0.5, "1", True, None, [1], 1 << 63):
        with pytest.raises(ValueError, match="the action is .* but must be a whole number"):
            env.step(action)
    envs.step([1, 1, 1, 1])
    envs.step(np.ones(4, np.uint8))
    env.step(np.array(1))
    with pytest.raises(ValueError, match=r"`options` is \[1\], but must be a dict"):
        envs.reset(options=[1])  # type: ignore[arg-type]
    for mask in ([True], np.ones(5, bool), [1, 0, 0, 1]):
        with pytest.raises(ValueError, match="`reset_mask` has shape .* but must be 4 truth values"):
            envs.reset(options={"reset_mask": mask})
    for num_envs in (-1, 0, 2.5, True, "3", 1 << 40):
        with pytest.raises(ValueError, match="num_envs is .* but must be a whole number"):
            grove_rl.make_vec("catch", num_envs)
    envs.close()
    env.close()
    with pytest.raises(ClosedEnvironmentError):
        envs.step(np.ones(4, int))
    with pytest.raises(ClosedEnvironmentError):
        envs.reset()
    with pytest.raises(ClosedEnvironmentError):
        env.step(1)
