"""Rejected arguments, and the messages about them."""

import errno
import os
import signal
import stat
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from common import BRIEF, MODULE, PROGRAM, SPLIT, TASK, Table, one
from gymnasium import spaces

import grove_rl

FEW = {"iterations": 1, "num_groups": 1, "group_size": 4, "eval_episodes": 2, "max_episode_steps": 3}
CHATS = [{"prompt": [{"role": "user", "content": "a"}], "solution": "b"}] * 2


class Still(gymnasium.Env):
    """An environment in which nothing happens, unless it is told what to return in its second step."""

    observation_space = spaces.Box(-1, 1, (3,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, **second: Any) -> None:
        self.second = second

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> Any:
        self.time += 1
        answer = {"obs": np.zeros(3), "reward": 0.0, "terminated": False, "truncated": False, "info": {}}
        return tuple((answer | (self.second if self.time == 2 else {})).values())


class Tensor:
    """A number of another library that NumPy cannot take."""

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("it requires gradients")

    def __eq__(self, other: object) -> Any:
        raise RuntimeError("it requires gradients")


@pytest.mark.parametrize(
    ("second", "words"),
    [
        ({"obs": np.zeros(1)}, r"step 2 of environment 0: the observation has shape \(1,\), but must have shape \(3,\)"),
        ({"obs": 0.5}, r"has shape \(\), but must have shape \(3,\)"),
        ({"obs": None}, r"has shape \(\)"),
        ({"obs": ["1", "2", "3"]}, "must consist of numbers"),
        ({"obs": [0, None, 0]}, "must consist of numbers"),
        ({"obs": [0, np.nan, 0]}, "step 2 of environment 0: the observation's number 1 is nan, but must be a finite"),
        ({"obs": [0, 0, -np.inf]}, "number 2 is -inf"),
        ({"reward": 10**400}, "step 2 of environment 0: the reward is inf, but must be a finite number"),
        ({"reward": -(10**400)}, "the reward is -inf"),
        ({"reward": np.inf}, "step 2 of environment 0: the reward is inf, but must be a finite number"),
        ({"reward": np.float64("nan")}, "the reward is nan"),
        ({"reward": 1e39}, "step 2 of environment 0: the reward is inf, but must be a finite number"),
        ({"reward": -2e15}, "environment 0: the reward is -2e.15, but must be a finite number, at most 1e.15 in size"),
        ({"obs": [0, 1e39, 0]}, "step 2 of environment 0: the observation's number 1 is inf, but must be a finite"),
        ({"reward": Tensor()}, "the reward is .*, but must be a number .RuntimeError: it requires gradients"),
        ({"terminated": Tensor()}, "`terminated` or `truncated` is .*, but both .* .RuntimeError: it requires gradients"),
        ({"reward": np.ma.masked}, "step 2 of environment 0: the reward has a masked number"),
        ({"reward": np.ma.array([1.0], mask=[True])}, "step 2 of environment 0: the reward has a masked number"),
        ({"obs": np.ma.array([1.0, 2, 3], mask=[0, 1, 0])}, "step 2 of environment 0: the observation has a masked number"),
        ({"terminated": np.ma.masked}, "`terminated` or `truncated` is masked, but both must be True or False"),
        ({"reward": np.timedelta64(5, "ns")}, "step 2 of environment 0: the reward is .*5.*, but must be a number"),
        ({"reward": np.timedelta64(1, "s")}, "step 2 of environment 0: the reward is .*1.*, but must be a number"),
        ({"reward": None}, "the reward is None, but must be a number"),
        ({"reward": "1"}, "the reward is '1', but must be a number"),
        ({"reward": [1, 2]}, r"the reward is \[1, 2\]"),
        ({"terminated": None}, "`terminated` or `truncated` is None, but both must be True or False"),
        ({"truncated": "0"}, "is '0', but both must be True or False"),
        ({"more": 0}, "returned .* but must return 5 values: observation, reward"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_environments_return_what_they_must(second: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        grove_rl.train(lambda: Still(**second), **FEW)


def test_a_sum_of_rewards_can_be_learnt_from() -> None:
    class Rich(Still):
        reward = 1e15 / 4

        def step(self, action: Any) -> Any:
            return super().step(action)[0], self.reward * float(action), False, False, {}

    norms: list[float] = []
    grove_rl.train(Rich, callback=lambda record: norms.append(record["grad_norm"]), **(FEW | {"group_size": 16}))
    assert norms[0] > 0
    Rich.reward = -8e14
    words = "the sum of the rewards is -1.6e.15, but must be a finite number, at most 1e.15 in size"
    with pytest.raises(ValueError, match=f"step [23] of environment .*: {words}"):
        grove_rl.train(Rich, **(FEW | {"group_size": 16}))


def spaced(observation: Any, action: Any) -> Still:
    env = Still()
    env.observation_space, env.action_space = observation, action
    return env


BOX, TWO = Still.observation_space, Still.action_space


@pytest.mark.parametrize(
    ("observation", "action", "words"),
    [
        (BOX, spaces.Discrete(1), r"the action space Discrete\(1\) has 1 actions, .* but must have 2 to 65536"),
        (BOX, spaces.MultiDiscrete([10] * 20), r"has 100000000000000000000 actions, all combinations counted"),
        (BOX, spaces.MultiDiscrete([16] * 16), "has 18446744073709551616 actions"),
        (spaces.Box(0, 1, (0,)), TWO, "an observation of Box.* has 0 numbers, but must have 1 to 1048576"),
        (spaces.Dict(), TWO, r"an observation of Dict\(\) has 0 numbers"),
        (spaces.Space((2,), np.float32), TWO, "observations of .*Space.* cannot be flattened to a vector"),
    ],
)
def test_spaces_have_a_size(observation: Any, action: Any, words: str) -> None:
    for num_processes in (0, 2):
        with pytest.raises(ValueError, match=words):
            grove_rl.train(lambda: spaced(observation, action), num_processes=num_processes, **FEW)


def test_environments_are_different_ones_with_the_same_spaces() -> None:
    one = Still()
    with pytest.raises(ValueError, match="environment 1 is environment 0 once more: the function must make a new"):
        grove_rl.train(lambda: one, **FEW)
    wide, shifted = spaces.Box(-1000, 1000, (3,), np.float32), spaces.Discrete(2, start=3)
    for other, words in (((wide, TWO), "observations"), ((BOX, shifted), "actions")):
        env_fns = [Still, Still, Still, lambda: spaced(*other)]
        with pytest.raises(ValueError, match=f"environment 3 has the {words} .*, but environment 0 has"):
            grove_rl.train(env_fns, **FEW)
        with pytest.raises(RuntimeError, match=f"environment 3 has the {words} .*, but environment 0 has"):
            grove_rl.train(env_fns, num_processes=2, **FEW)


def test_environments_are_closed_if_one_cannot_be_made() -> None:
    closed: list[int] = []

    class Counted(Still):
        def close(self) -> None:
            closed.append(id(self))

    def fail() -> Any:
        raise OSError("no licence")

    with pytest.raises(OSError, match="no licence"):
        grove_rl.train([Counted, Counted, Counted, fail], **FEW)
    # The first function also makes the one whose spaces are looked at.
    assert len(closed) == 4


def test_scalars_of_other_libraries_are_rewards() -> None:
    for reward in (1, True, np.float32(1), np.array(1), np.array([1.0]), np.bool_(True)):
        flag = np.array(False) if isinstance(reward, np.ndarray) else np.bool_(False)
        grove_rl.train(lambda: Still(reward=reward, terminated=flag, truncated=0), **FEW)


def test_observations_far_beyond_narrow_bounds_are_refused() -> None:
    class Narrow(Still):
        observation_space = spaces.Box(0, 1e-10, (3,), np.float32)

    words = "step 2 of environment 0: the observation's number 1 is .*, but must be within or near the bounds"
    with pytest.raises(ValueError, match=words):
        grove_rl.train(lambda: Narrow(obs=np.array([0, 1e38, 0])), **FEW)


def test_rollouts_beyond_all_memory_are_refused() -> None:
    wide = spaces.Box(-1, 1, (1 << 20,), np.float32)
    words = "4 environments, 268435456 steps and 1048576 numbers an observation needs 4,503,600 GB of memory"
    with pytest.raises(ValueError, match=words):
        grove_rl.train(lambda: spaced(wide, TWO), **(FEW | {"max_episode_steps": 1 << 28}))


def test_settings_are_checked_before_environments_are_made() -> None:
    made: list[int] = []

    class Counted(Still):
        def __init__(self) -> None:
            super().__init__()
            made.append(1)

    for wrong, words in [
        ({"learning_rat": 1e-3}, "learning_rat"),
        ({"learning_rate": -1.0}, "learning_rate"),
        ({"group_size": 1 << 40}, "group_size"),
        ({"num_steps": 1 << 40}, "num_steps"),
    ]:
        with pytest.raises(ValueError, match=words):
            grove_rl.train(Counted, **(FEW | wrong))
        # The one whose spaces were looked at.
        assert len(made) == 1
        made.clear()


def test_numbers_of_numpy_do_not_wrap_around() -> None:
    few = FEW | {"num_groups": np.uint8(16), "group_size": np.uint8(16)}
    report = grove_rl.train(Still, **few)
    assert "group_size = 16" in Path(report.run, "config.toml").read_text() and report.env_steps == 256 * 3


def test_games_beyond_all_memory_are_refused() -> None:
    board = {"rows": 32, "columns": 16, "observation": "board"}
    words = "a batch of 1073741824 games of catch needs .* GB of memory, more than there is: lower `num_envs`"
    with pytest.raises(ValueError, match=words):
        grove_rl.make_vec("catch", 1 << 30, **board)
    rollout = {"num_groups": 1 << 14, "group_size": 1 << 9, "num_steps": 128}
    words = "a rollout of 8388608 games, 128 steps and 512 numbers an observation needs .* GB of memory"
    with pytest.raises(ValueError, match=words):
        grove_rl.train("catch", device="cpu", catch=board, rollout=rollout)
    assert not Path("runs").exists()


def test_a_game_names_its_own_parameters() -> None:
    with pytest.raises(ValueError, match="catch has no parameter `seed`; its parameters: rows, .*; give a seed to `reset`"):
        grove_rl.make_vec("catch", 2, seed=3)
    with pytest.raises(ValueError, match="catch has no parameter `num_steps`; its parameters: rows, "):
        gymnasium.make("grove/Catch-v0", num_steps=5)


def test_pictures_have_the_shape_of_their_space() -> None:
    class Picture(Still):
        observation_space = spaces.Box(0, 255, (4, 2), np.uint8)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return np.zeros((2, 4), np.uint8), {}

    words = r"the reset of environment 0: the observation has shape \(2, 4\), but must have shape \(4, 2\)"
    with pytest.raises(ValueError, match=words):
        grove_rl.train(Picture, **FEW)


def test_too_little_shared_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(file: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(ValueError, match="`num_processes` needs 0.0 MB of shared memory, but there is less .*No space"):
        grove_rl.train(Still, num_processes=2, **FEW)


def test_a_process_that_ends_is_named() -> None:
    class Leaving(Still):
        def __init__(self, how: str) -> None:
            self.how = how

        def step(self, action: Any) -> Any:
            if self.how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            elif self.how == "_exit":
                os._exit(3)
            sys.exit("no licence")

    few = FEW | {"num_processes": 2}
    words = {
        "kill": "the process of the environments 0 to 1 was killed by signal 9",
        "_exit": "the process of the environments 0 to 1 ended with exit code 3",
        "exit": "an environment failed in its process(.|\n)*SystemExit: no licence",
    }
    for how, said in words.items():
        with pytest.raises(RuntimeError, match=said):
            grove_rl.train(lambda: Leaving(how), **few)


async def awaited(**_: Any) -> list[float]:
    return []


class Awaited:
    """An object whose calls must be awaited."""

    async def __call__(self, *_: Any, **__: Any) -> list[float]:
        return []


def logging(completions: list[str], log_metric: Any, **_: Any) -> list[float]:
    return [0.0] * len(completions)


@pytest.mark.parametrize(
    ("what", "arguments", "words"),
    [
        ("catch", {"reward": len}, "`reward` is .* does not apply to the built-in game catch"),
        ("catch", {"num_processes": 2}, "`num_processes` is 2, but does not apply to the built-in game"),
        ("catch", {"max_episode_steps": 3}, "`max_episode_steps` is 3"),
        ("catch", {"model": "tiny"}, "`model` is 'tiny'"),
        ("catch", {"task": TASK, "reward": len}, "`what` is 'catch', but does not apply to a language model"),
        ("catch", {"env": "fruit"}, "`env` is not a setting of `train`"),
        (Still, {"host": {"num_actions": 3}}, "`host` is not a setting of `train`"),
        (Still, {"reward": len}, "`reward` is .* does not apply to an environment"),
        (Still, {"num_processes": -1}, "`num_processes` is -1, but must be a whole number, 0 or more"),
        (Still, {"num_processes": 1.5}, "`num_processes` is 1.5"),
        (Still, {"num_groups": np.timedelta64(2)}, "`rollout.num_groups` is .*2.*, but must be a whole number"),
        ("catch", {"iterations": np.timedelta64(2, "ns")}, "`iterations` cannot be .*2.*: must be a number"),
        (None, {"task": [{"prompt": "a", "x": np.timedelta64(2, "ns")}], "reward": len}, "column `x` .* type timedelta64"),
        (Still, {"max_episode_steps": 0}, "`max_episode_steps` is 0, but must be a whole number, 1 to"),
        (Still, {"max_episode_steps": (1 << 30) + 1}, "`max_episode_steps` is 1073741825, but must be a whole number, 1 to 1073741824"),
        ("catch", {"resume": True}, "`resume` is not a setting of `train`: the program resumes"),
        ("catch", {"threads": 2}, "`threads` is not a setting of `train`: .* RAYON_NUM_THREADS"),
        (Still, {"num_groups": "2"}, "`rollout.num_groups` is '2', but must be a whole number"),
        (Still, {"rollout": 3}, "`rollout` cannot be 3: must be a dict"),
        (Still, {"num_generations": 4, "rollout.group_size": 4}, "`rollout.group_size` is given twice: 4 and 4"),
        (Still, {"rollout.group_sise": 4}, "group_sise"),
        ("catch", {"optimizer": "adam", "optimizer.learning_rate": 1e-3}, "`optimizer` cannot be 'adam': must be a dict"),
        (Still, {"num_generations": 4, "group_size": 4}, "`rollout.group_size` is given twice: 4 and 4"),
        (None, {"task": TASK, "reward": len, "num_processes": 2}, "`num_processes` is 2"),
        (None, {"task": TASK, "reward": []}, r"`reward` is \[\], but a language model needs a function"),
        (None, {"task": TASK}, "`reward` is None"),
        (None, {"task": "2+2=", "reward": len}, "`task` is '2.2=', but must be a list of prompts"),
        (None, {"task": Table(), "reward": len}, "`task` is a table, a Table, but must be a list of prompts"),
        (None, {"task": [TASK[0] | {"meta": {1: "x"}}], "reward": len}, "the column `meta` .* is not JSON: the key 1 is not a string"),
        (None, {"task": {"prompt": ["a"], "solution": ["b"]}, "reward": len}, "`task` is a dict of columns, .*: give the rows"),
        (None, {"task": "a" * 10**6, "reward": len}, r"`task` is 'a{5,20}\.\.\.a{5,20}', but must be a list of prompts"),
        ("catch", {"run_dir": b"x"}, "`run_dir` is b'x', but must name a folder"),
        (None, {"task": TASK, "eval_task": Table(), "reward": len}, "`eval_task` is a table"),
        (None, {"task": [TASK[0] | {"completions": "x"}], "reward": len}, "a prompt has a column `completions`"),
        (None, {"task": [{"prompt": [{"role": "user"}]}], "reward": len}, "must have a `role`, a string, and a `content`"),
        (None, {"task": CHATS, "reward": len}, "the model has no chat template for conversations"),
        (None, {"task": [chat | {"prompt": np.array(chat["prompt"])} for chat in CHATS], "reward": len}, "no chat template"),
        (None, {"task": [{"prompt": CHATS[0]["prompt"], "tools": ["hammer"]}], "reward": len}, "`tools` must be a list of objects"),
        (None, {"task": [{"prompt": "", "solution": "b"}] * 2, "reward": len}, "the prompt is empty"),
        (None, {"task": ["a", "b"], "eval_task": ["b"], "reward": len}, "`eval_task.0.`: the same prompt is in the split `train` at `task.1.`"),
        (None, {"task": SPLIT + [SPLIT[0] | {"split": "test"}], "reward": len}, "no prompt may be in both"),
        (None, {"task": SPLIT[1:], "reward": len}, "no prompt is in the split `train`; mark some"),
        (None, {"task": [SPLIT[0] | {"split": "dev"}], "reward": len}, "the column `split` of `task.0.` is 'dev', but must be"),
        (None, {"task": SPLIT, "eval_task": ["c"], "reward": len}, "`task.1.` is 'test', but with `eval_task` its split is 'train'"),
        (None, {"task": [3], "reward": len}, "the prompt 3 is neither a string nor a list of messages"),
        (None, {"task": [{"prompt": "a", "x": np.nan}], "reward": len}, "the column `x` of a prompt is nan, which is not JSON"),
        (None, {"task": [{"prompt": "a", "x": {3}}], "reward": len}, "the column `x` .* is .3., .* for the type set"),
        (None, {"task": [{"prompt": "a", (1, 2): 3}], "reward": len}, r"the columns \[\(1, 2\)\] of a prompt are not JSON"),
        (None, {"task": [{"prompt": CHATS[0]["prompt"], "at": date(2000, 1, 2)}], "reward": len}, "the column `at` .* type date"),
        (None, {"task": [[*CHATS[0]["prompt"], {"role": "assistant", "content": "b"}]], "reward": len}, "ends with a message of the"),
        (None, {"task": [[{"role": "user", "content": b"a"}]], "reward": len}, "the message .* of a prompt is not JSON: .* bytes"),
        (None, {"task": TASK, "reward": len, "reward_weights": [np.nan]}, r"`reward_weights` is \[nan\]"),
        (None, {"task": TASK, "reward": len, "reward_weights": [1e16]}, "but must be finite numbers, at most 1e.15"),
        (None, {"task": TASK, "reward": len, "reward_weights": 3}, "`reward_weights` is 3, but must be a list"),
        (None, {"task": TASK, "reward": len, "reward_weights": "1"}, "`reward_weights` is '1', but must be a list"),
        ("catch", {"callback": 3}, "`callback` is 3, but must be a function"),
        ("catch", {"callback": awaited}, "`callback` is the async function .*, but nothing awaits it"),
        (None, {"task": TASK, "reward": [len, awaited]}, "`reward` has the async function .*, but nothing awaits it"),
        (None, {"task": TASK, "reward": Awaited()}, "`reward` has the async function .*, but nothing awaits it"),
        (None, {"task": TASK, "reward": logging}, "which requires `log_metric`, but nothing provides it"),
        (None, {"task": TASK, "reward": 5}, "`reward` is 5, but a language model needs a function"),
        (None, {"task": [{1: "a", "x": "b"}], "reward": len}, r"a prompt has the columns \[1, 'x'\], but none named"),
        (None, {"task": [], "reward": len}, "`task` is empty, but must have a prompt or more"),
        (None, {"task": TASK, "reward": len, "model": ""}, "`model` is '', but must name a folder"),
        ([], {}, r"\[\] must be one or more functions"),
        (gymnasium.Env, {}, "`observation_space` of .* is None, but must be a space of gymnasium.spaces"),
        (3, {}, "3 must be one or more functions"),
        (lambda: 3, {}, "returned 3, but must make an environment"),
        ("catch", {"learning_rate": np.nan}, "`learning_rate` cannot be nan: must be a finite number"),
        ("catch", {"optimizer": {"learning_rate": np.inf}}, "`optimizer.learning_rate` cannot be inf"),
        ("catch", {"seed": 1 << 63}, "`seed` cannot be 9223372036854775808: must be"),
        ("catch", {"policy": {"hidden": [8, None]}}, "`policy.hidden` cannot be None"),
        (None, {"task": TASK, "reward": len, "output_dir": "out"}, "`output_dir` is not a setting .* `run_dir` names"),
        ("catch", {"optimizer": "adam"}, "`optimizer` cannot be \"adam\": it is a section of settings"),
        ("catch", {"run_dir": ""}, "`run_dir` is '', but must name a folder"),
        ("catch", {"run_dir": "c\udcffd"}, r"`run_dir` is 'c.udcffd', but must be Unicode"),
        ("catch", {"stop": {"score": np.inf}}, "`stop.score` cannot be inf: must be a finite number, or None for its default"),
        ("catch", {"learning_rat": 1e-3}, "learning_rat"),
        ("catch", {"group_size": 1}, "group_size"),
        ("Pendulum-v1", {}, "neither Discrete"),
        (None, {"task": TASK, "reward_funcs": len}, "`reward_funcs` is not a setting of `train`: the argument `reward`"),
        (Still, {"data": {"path": "nowhere"}, "loss": {"loss_type": "nll"}}, "`grove fit` learns from datasets; `train` plays"),
    ],
)
def test_arguments_that_mean_nothing_are_refused(what: Any, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        grove_rl.train(what, **arguments)
    assert not Path("runs").exists()


def test_settings_may_be_of_numpy_and_have_the_names_of_trl() -> None:
    settings = {"policy": {"hidden": np.array([8, 8])}, "learning_rate": np.float32(0.5), "iterations": np.int64(1)}
    report = grove_rl.train("catch", device="cpu", **settings)
    assert "learning_rate = 0.5" in Path(report.run, "config.toml").read_text()
    report = grove_rl.train(
        Still,
        rollout={"num_groups": 1, "num_generations": 4},
        iterations=1,
        num_iterations=3,
        eval_episodes=2,
        max_episode_steps=3,
    )
    config = Path(report.run, "config.toml").read_text()
    assert "group_size = 4" in config and "update_epochs = 3" in config
    few = {name: value for name, value in FEW.items() if name != "group_size"}
    for more in ({"rollout.group_size": np.int64(8)}, {"rollout.num_generations": 8}):
        assert grove_rl.train(Still, **few, **more).env_steps == 8 * 3
    assert grove_rl.make_vec("catch", 1, rows=np.int32(6)).reset(seed=0)


def test_none_leaves_a_setting_at_its_default() -> None:
    # As `dataclasses.asdict` of TRL's configuration has them.
    off = {"epsilon_high": None, "delta": None, "num_generations": None, "output_dir": None, "lora": {"r": None}}
    runs = [grove_rl.train(task=TASK, reward=one, **BRIEF, **more).run for more in ({}, off)]
    assert len({Path(run, "config.toml").read_text() for run in runs}) == 1


def test_names_of_games_are_listed_beside_those_of_gymnasium() -> None:
    with pytest.raises(gymnasium.error.NameNotFound, match="friut.* Nor is it a game of Grove: fruit, "):
        grove_rl.train("friut")


def test_a_run_needs_no_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    for what, few in ("catch", {"iterations": 1, "device": "cpu"}), (Still, FEW):
        report = grove_rl.train(what, run_dir=tmp_path / str(what), **few)
        assert report.policy().num_actions > 1
    monkeypatch.chdir(tmp_path)


def test_a_run_that_exists_is_refused_in_the_words_of_python() -> None:
    grove_rl.train("catch", device="cpu", iterations=1, run_dir="run")
    with pytest.raises(ValueError, match="the run directory run exists; choose another `run_dir`"):
        grove_rl.train("catch", device="cpu", iterations=1, run_dir="run")


def test_the_program_has_the_exit_status_of_an_invalid_command_line() -> None:
    for words, status in (["--help"], 0), (["eval", "nothing"], 1), (["train", "--nonsense"], 2):
        assert subprocess.run([*MODULE, *words], capture_output=True, check=False).returncode == status, words


def test_the_program_says_why_it_does_not_resume_runs_of_python() -> None:
    runs = {
        grove_rl.train(Still, **FEW).run: "stands for environments in a Python process",
        grove_rl.train(task=TASK, reward=one, **BRIEF).run: "reward functions are those of a Python process",
    }
    for run, words in runs.items():
        resumed = subprocess.run([*PROGRAM, "train", "--resume", run], capture_output=True, text=True)
        assert resumed.returncode == 1 and words in resumed.stderr, resumed.stderr


def test_a_forked_process_does_not_wait_for_threads_that_it_lacks() -> None:
    grove_rl.train("catch", device="cpu", iterations=1)
    process = os.fork()
    if process == 0:
        try:
            grove_rl.train("catch", device="cpu", iterations=1)
        except RuntimeError as error:
            os._exit(42 if "spawn" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 42


def test_the_folder_of_the_cache_belongs_to_its_user_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = grove_rl._train._cache_folder
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert folder() == str(tmp_path / "cache" / "grove")
    assert stat.S_IMODE((tmp_path / "cache" / "grove").stat().st_mode) == 0o700
    (tmp_path / "cache" / "grove").chmod(0o777)
    assert folder() is None
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert folder() == str(tmp_path / ".cache" / "grove")
    (tmp_path / "other").symlink_to(tmp_path / ".cache", target_is_directory=True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    assert folder() == str(tmp_path / "other" / "grove")
    (tmp_path / "grove").symlink_to(tmp_path / ".cache" / "grove", target_is_directory=True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert folder() is None
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", "")
    assert folder() is None


@pytest.mark.parametrize(
    "command",
    [
        ["-c", "import grove_rl; grove_rl.train('catch', iterations=1)"],
        [*MODULE[1:], "devices"],
    ],
)
def test_graphics_libraries_print_nothing_while_adapters_are_listed(command: list[str]) -> None:
    program = [sys.executable, *command]
    variables = {name: value for name, value in os.environ.items() if name != "XDG_RUNTIME_DIR"}
    assert subprocess.run(program, env=variables, capture_output=True, check=True).stderr == b""
