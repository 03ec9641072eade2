"""Training from Python."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import warnings
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from common import BRIEF, MODULE, PROGRAM, TASK, one
from gymnasium import spaces

import grove_rl


class Corridor(gymnasium.Env):
    """A corridor that is left by its right end; observations are a dict, actions two switches."""

    observation_space = spaces.Dict({"cell": spaces.Box(0, 10, (1,), np.float32), "odd": spaces.Discrete(2)})
    action_space = spaces.MultiDiscrete([2, 2])

    def _obs(self) -> dict[str, Any]:
        return {"cell": np.array([self.cell], np.float32), "odd": self.cell % 2}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.cell = int(self.np_random.integers(8))
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        self.cell = max(self.cell + (1 if action[0] == action[1] else -1), 0)
        return self._obs(), -1.0, self.cell >= 10, False, {}


SHORT = {"num_groups": 4, "group_size": 8, "eval_episodes": 32}


def test_a_game_is_trained_as_by_the_program() -> None:
    events: list[dict] = []
    report = grove_rl.train("catch", iterations=4, device="cpu", callback=events.append)
    assert [event["iteration"] for event in events] == [1, 2, 3, 4]
    words = ["train", "catch", "--device", "cpu", "--iterations", "4", "--run-dir", "by-program"]
    subprocess.run([*PROGRAM, *words], check=True, capture_output=True)
    lines = [Path(run, "metrics.jsonl").read_text() for run in (report.run, "by-program")]
    losses = [[json.loads(line)["loss"] for line in text.splitlines()] for text in lines]
    assert losses[0] == losses[1] and len(losses[0]) == 4
    policy = grove_rl.Policy.load(report.run)
    envs = grove_rl.make_vec("catch", 3)
    obs, _ = envs.reset(seed=0)
    assert policy(obs).shape == (3,) and policy(obs[0]) == policy(obs)[0]


def test_the_program_starts_itself_again_for_runs_side_by_side(folder: Path) -> None:
    # A folder of the package's name in the current one is not the package.
    Path("grove_rl").mkdir()
    words = ["train", "catch", "--device", "cpu", "--iterations", "2", "--seeds", "1..2", "--json"]
    done = subprocess.run([*MODULE, *words], check=True, capture_output=True, text=True)
    runs = json.loads(done.stdout)["runs"]
    assert [run["seed"] for run in runs] == [1, 2] and "Warning" not in done.stderr


def test_environments_of_python_are_trained() -> None:
    events: list[dict] = []
    report = grove_rl.train(
        Corridor, iterations=15, max_episode_steps=40, callback=events.append, **SHORT
    )
    assert report.mean_score > -8
    # Each environment rests after its only episode of an iteration.
    assert {event["episodes"] for event in events} == {32}
    # A step costs 1.
    assert all(event["mean_length"] == -event["score"] for event in events)
    policy, env = report.policy(), Corridor()
    obs, _ = env.reset(seed=3)
    assert env.action_space.contains(np.asarray(policy(obs)))
    flat = spaces.flatten(env.observation_space, obs)
    np.testing.assert_array_equal(grove_rl.Policy.load(report.run)(flat), policy(obs))


def test_episodes_end_at_the_limit_that_is_asked_for_or_else_at_their_own() -> None:
    class Endless(Corridor):
        def step(self, action: Any) -> Any:
            return self._obs(), 0.0, False, False, {}

    def limited() -> gymnasium.Env:
        return gymnasium.wrappers.TimeLimit(Endless(), 7)

    gymnasium.register("Endless-v0", entry_point=Endless, max_episode_steps=3)
    few = {"iterations": 1, "num_groups": 1, "group_size": 4, "eval_episodes": 2}
    for what, asked, steps in (("Endless-v0", None, 3), ("Endless-v0", 2, 2), ("Endless-v0", 5, 5), (limited, None, 7)):
        report = grove_rl.train(what, max_episode_steps=asked, **few)
        assert report.details["mean_length"] == steps
        assert f"num_steps = {steps}" in Path(report.run, "config.toml").read_text().splitlines()


def test_processes_do_not_change_the_result() -> None:
    def losses(num_processes: int) -> list[float]:
        events: list[dict] = []
        grove_rl.train(
            Corridor,
            iterations=2,
            max_episode_steps=20,
            num_processes=num_processes,
            callback=events.append,
            **SHORT,
        )
        return [event["loss"] for event in events]

    assert losses(0) == losses(2)


#: State that a forked process would share.
STATE = {"is_used": False}


class Fresh(Corridor):
    """An environment that cannot do with the state of the process that trains."""

    def step(self, action: Any) -> Any:
        assert not STATE["is_used"]
        return super().step(action)


def test_processes_start_afresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STATE, "is_used", True)
    few = {"iterations": 1, "max_episode_steps": 5, **SHORT}
    with pytest.raises(AssertionError):
        grove_rl.train(Fresh, **few)
    grove_rl.train(Fresh, num_processes=2, **few)
    # Its id is known in this process alone.
    gymnasium.register("Fresh-v0", entry_point=lambda: Fresh())
    grove_rl.train("Fresh-v0", num_processes=2, **few)
    lock = threading.Lock()
    with pytest.raises(ValueError, match="`num_processes` needs functions that can be pickled .*TypeError"):
        grove_rl.train(lambda: (Fresh(), lock)[0], num_processes=2, **few)
    with pytest.raises(ValueError, match="but <function .* cannot"):
        grove_rl.train([Fresh] * 7 + [lambda: (Fresh(), lock)[0]], num_processes=2, **few | {"num_groups": 2, "group_size": 4})


def test_processes_of_two_threads_leave_the_main_module_in_its_place() -> None:
    main, both = sys.modules["__main__"], [threading.Event(), threading.Event()]

    class Slow:
        def __init__(self, number: int) -> None:
            self.number = number

        def start(self) -> None:
            both[self.number].set()
            # The second one starts during the first, unless it has to wait, and ends after it.
            both[1].wait(0.2) if self.number == 0 else threads[0].join()

    threads = [threading.Thread(target=grove_rl._processes._start, args=(Slow(number),)) for number in (0, 1)]
    for thread, started in zip(threads, both):
        thread.start()
        started.wait()
    threads[1].join()
    assert sys.modules["__main__"] is main


def run_script(script: str, **options: Any) -> subprocess.CompletedProcess:
    """Runs a script that may import this file."""
    Path("script.py").write_text(script)
    folders = filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(folders)}
    return subprocess.run([sys.executable, "script.py"], env=environment, timeout=300, **options)


SPAWNED = """
import multiprocessing, grove_rl, test_train

class Mine(test_train.Corridor):
    pass

def run():
    grove_rl.train(Mine, num_processes=2, max_episode_steps=5, iterations=1, **test_train.SHORT)

if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=run)
    process.start()
    process.join()
    raise SystemExit(process.exitcode)
"""


def test_a_process_that_was_spawned_has_processes_of_its_own() -> None:
    run_script(SPAWNED, check=True)


REGISTERED = """
import gymnasium, grove_rl, test_train

class Mine(test_train.Corridor):
    pass

if __name__ == "__main__":
    gymnasium.register("Mine-v0", entry_point="__main__:Mine")
    grove_rl.train("Mine-v0", num_processes=2, max_episode_steps=5, iterations=1, **test_train.SHORT)
"""


def test_an_id_may_stand_for_a_class_of_the_main_script() -> None:
    run_script(REGISTERED, check=True)


class Deaf(Corridor):
    """An environment that hangs, in a process that does not end when it is told to."""

    def __init__(self) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def step(self, action: Any) -> Any:
        while True:
            signal.pause()


def test_a_process_that_ignores_signals_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grove_rl._processes, "_CLOSING", 0.0)
    batch = grove_rl._processes.ProcessBatch([Deaf] * 2, (Deaf.observation_space, Deaf.action_space), 1)
    # It has made its environments when it answers.
    batch.reset()
    batch._pipes[0].send("step")
    [(worker, _)] = batch._workers
    batch.close()
    assert worker.exitcode == -signal.SIGKILL


def test_ctrl_c_while_processes_are_ended_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = grove_rl._processes.ProcessBatch([Corridor] * 2, (Corridor.observation_space, Corridor.action_space), 2)
    join, names = grove_rl._processes._join, [block.name for block in batch._memory]

    def interrupted(workers: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        join(workers)

    monkeypatch.setattr(grove_rl._processes, "_join", interrupted)
    with pytest.raises(KeyboardInterrupt):
        batch.close()
    assert not any(worker.is_alive() for worker, _ in batch._workers)
    for name in names:
        with pytest.raises(FileNotFoundError):
            shared_memory.SharedMemory(name=name)


KILLED = """
import os, signal, grove_rl, test_train

class Mine(test_train.Corridor):
    pass

def kill(record):
    os.kill(os.getpid(), signal.SIGKILL)

grove_rl.train(lambda: Mine(), num_processes=2, max_episode_steps=5, callback=kill, **test_train.SHORT)
"""


def test_processes_end_with_the_one_that_trains() -> None:
    # The processes share the pipe, which is at its end when the last one is.
    done = run_script(KILLED, stdout=subprocess.PIPE)
    assert done.returncode == -signal.SIGKILL


LEFT = """
import threading, time, grove_rl, test_train

begun = threading.Event()

class Slow(test_train.Corridor):
    def step(self, action):
        time.sleep(0.01)
        return super().step(action)

def run(num_processes):
    few = {"num_groups": 1, "group_size": 4, "max_episode_steps": 5}
    grove_rl.train(Slow, num_processes=num_processes, callback=lambda _: begun.set(), **few)

def judge(completions, **_):
    begun.set()
    time.sleep(0.01)
    return [float(len(text)) for text in completions]

def learn():
    brief = {"fit": {"iterations": 0}, "generation": {"num_prompts": 2, "group_size": 2, "max_new_tokens": 2}}
    grove_rl.train(task=[{"prompt": "1>", "solution": "ab"}] * 4, reward=judge, **brief)

threading.Thread(target=WHAT, daemon=True).start()
begun.wait()
"""


@pytest.mark.parametrize("what", ["lambda: run(0)", "lambda: run(2)", "learn"])
def test_a_process_ends_while_a_daemon_thread_trains(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    monkeypatch.setenv("PYTHONWARNINGS", "ignore")
    done = run_script(LEFT.replace("WHAT", what), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_ctrl_c_leaves_none_of_the_processes_that_are_being_started(monkeypatch: pytest.MonkeyPatch) -> None:
    start, started = grove_rl._processes._start, []

    def interrupted(process: Any) -> None:
        start(process)
        started.append(process)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(grove_rl._processes, "_start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        grove_rl.train(Corridor, num_processes=2, max_episode_steps=5, **SHORT)
    assert len(started) == 2 and not any(process.is_alive() for process in started)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()


def test_each_run_warns_anew() -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("default")
        counts = [0]
        for _ in range(2):
            grove_rl.train(task=TASK, reward=one, **(BRIEF | {"iterations": 2}))
            counts.append(len(seen) - sum(counts))
    assert counts[1] == counts[2] > 0


@pytest.mark.filterwarnings("ignore:iteration:UserWarning")
def test_python_is_called_on_the_thread_that_trains() -> None:
    threads: set[int] = set()

    class Bound(Corridor):
        def __init__(self) -> None:
            threads.add(threading.get_ident())

        def reset(self, **arguments: Any) -> Any:
            threads.add(threading.get_ident())
            return super().reset(**arguments)

        def step(self, action: Any) -> Any:
            threads.add(threading.get_ident())
            return super().step(action)

    def reward(completions: list[str], **_: Any) -> list[float]:
        threads.add(threading.get_ident())
        return [float(len(text)) for text in completions]

    grove_rl.train(Bound, iterations=2, max_episode_steps=5, **SHORT)
    grove_rl.train(task=TASK, reward=reward, **(BRIEF | {"iterations": 2}))
    assert threads == {threading.get_ident()}


@pytest.mark.parametrize("num_presses", [1, 2])
def test_the_second_interrupt_ends_a_run_at_once(num_presses: int) -> None:
    left = [num_presses]

    class Pressing(Corridor):
        def step(self, action: Any) -> Any:
            if left[0] > 0:
                left[0] -= 1
                signal.raise_signal(signal.SIGINT)
            return super().step(action)

    with pytest.raises(KeyboardInterrupt):
        grove_rl.train(Pressing, iterations=5, max_episode_steps=5, run_dir="run", **SHORT)
    assert left == [0] and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    saved = [path.name for path in Path("run/checkpoints").glob("0*")]
    assert saved == (["00000001"] if num_presses == 1 else [])


def test_an_interrupt_ends_a_run_within_a_run() -> None:
    seen: list[str] = []

    def press(event: dict) -> None:
        seen.append(f"inner {event['iteration']}")
        signal.raise_signal(signal.SIGINT)

    def nest(event: dict) -> None:
        seen.append(f"outer {event['iteration']}")
        with pytest.raises(KeyboardInterrupt):
            grove_rl.train("catch", device="cpu", iterations=3, callback=press)

    with pytest.raises(KeyboardInterrupt):
        grove_rl.train("catch", device="cpu", iterations=3, callback=nest)
    assert seen == ["outer 1", "inner 1"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_handler_of_an_earlier_run_ends_no_later_one() -> None:
    saved: list[Any] = []
    options: dict = {"device": "cpu", "iterations": 1}
    grove_rl.train("catch", callback=lambda _: saved.append(signal.getsignal(signal.SIGINT)), **options)
    signal.signal(signal.SIGINT, saved[0])
    try:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert grove_rl.train("catch", **options).run
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def test_what_close_raises_is_a_warning_after_a_run() -> None:
    closed: list[Corridor] = []

    class Closing(Corridor):
        def close(self) -> None:
            closed.append(self)
            if len(closed) == 3:
                raise OSError("no such window")

    with pytest.warns(UserWarning, match="an environment failed when it was closed: OSError.'no such window'.") as seen:
        report = grove_rl.train(Closing, iterations=1, max_episode_steps=5, **SHORT)
    # Those of a rollout, and the one whose spaces were looked at.
    assert report.env_steps > 0 and len(set(map(id, closed))) == 33 and seen[0].filename == __file__


def test_an_exit_in_close_leaves_no_environment_open() -> None:
    closed: list[Corridor] = []

    class Leaving(Corridor):
        error: type[BaseException] = SystemExit

        def close(self) -> None:
            closed.append(self)
            if len(closed) == 3:
                raise self.error

    few = {"iterations": 1, "max_episode_steps": 5, **SHORT}
    for Leaving.error in (SystemExit, asyncio.CancelledError):
        with pytest.warns(UserWarning, match=f"an environment failed when it was closed: {Leaving.error.__name__}"):
            assert grove_rl.train(Leaving, **few).env_steps > 0
        assert len(closed) == 33
        closed.clear()
    Leaving.error = KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt):
        grove_rl.train(Leaving, **few)
    assert len(closed) == 33


def test_exceptions_and_stops_reach_the_caller() -> None:
    class Failing(Corridor):
        def step(self, action: Any) -> Any:
            raise OSError("the simulator is gone")

    with pytest.raises(OSError, match="the simulator is gone"):
        grove_rl.train(Failing, iterations=2, max_episode_steps=20, **SHORT)
    with pytest.raises(RuntimeError, match="the simulator is gone"):
        grove_rl.train(Failing, iterations=2, max_episode_steps=20, num_processes=2, **SHORT)

    def interrupt(event: dict) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        grove_rl.train("catch", device="cpu", run_dir="interrupted", callback=interrupt)
    assert list(Path("interrupted/checkpoints").iterdir())
    report = grove_rl.train("catch", device="cpu", callback=lambda event: event["iteration"] < 3)
    assert report.details["interrupted"] and report.details["iteration"] == 3
    assert [path.name for path in Path(report.run, "checkpoints").iterdir()] == ["00000003"]


def test_a_run_names_its_environment() -> None:
    for what, name in ((Corridor, "Corridor"), ("CartPole-v1", "CartPole-v1")):
        run = grove_rl.train(what, iterations=1, max_episode_steps=5, **SHORT).run
        assert json.loads(Path(run, "run.json").read_text())["environment"] == name
