"""Policies of Python environments, from their files."""

import copy
import json
import pickle
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from common import PROGRAM
from gymnasium import spaces

import grove_rl

FEW = {"iterations": 2, "num_groups": 1, "group_size": 4, "eval_episodes": 2, "eval_every": 1, "save_every": 1}


BIT = spaces.MultiBinary(1)


class Pair(gymnasium.Env):
    """An environment of two numbers of very different ranges."""

    observation_space: Any = spaces.Box(np.array([0, -2], np.float32), np.array([1000, 2], np.float32))
    action_space = spaces.Discrete(2, start=5)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        return self.observation_space.sample(), 1.0, False, False, {}


class Named(Pair):
    """The same as a dict."""

    observation_space = spaces.Dict({"a": spaces.Box(0, 1000, (1,), np.float32), "b": spaces.Discrete(2)})


def trained(env: Any, **arguments: Any) -> grove_rl.Report:
    return grove_rl.train(env, max_episode_steps=3, **FEW, **arguments)


def test_every_path_to_a_policy_leads_to_its_encoding() -> None:
    run = Path(trained(Pair).run)
    obs = np.array([[900, 1], [100, -1], [3, 0]], np.float32)
    scaled = (obs - [500, 0]) / [500, 2]
    for path in ("best", "best/weights.safetensors", "checkpoints/00000002", "checkpoints/00000002/weights.safetensors"):
        policy = grove_rl.Policy.load(run / path)
        expected = grove_rl.Policy.load(run / path)
        expected._encoding = None
        np.testing.assert_allclose(policy.logits(obs), expected.logits(scaled), rtol=1e-5, atol=1e-7)
        assert policy(obs[0]) in (5, 6)
    assert run == Path("runs/host-1")
    assert trained(Pair).run == str(Path("runs/host-2"))
    policy = grove_rl.Policy.load("host")
    assert repr(policy) == f"Policy('host', game='host', iteration={policy.iteration})"
    shutil.copytree(run / "best", "elsewhere")
    with pytest.raises(ValueError, match="elsewhere was trained in an environment of Python, but .* spaces.json"):
        grove_rl.Policy.load("elsewhere")


def test_a_run_that_ends_early_has_its_encoding() -> None:
    def interrupt(event: dict) -> None:
        raise KeyboardInterrupt

    for run_dir in (None, "given"):
        with pytest.raises(KeyboardInterrupt):
            trained(Pair, callback=interrupt, run_dir=run_dir)
        run = run_dir or "runs/host-1"
        assert Path(run, "spaces.json").is_file() and grove_rl.Policy.load(run)([1.0, 1.0]) in (5, 6)
    Path("given/spaces.json").write_text("kept")
    with pytest.raises(ValueError, match="given exists"):
        trained(Pair, run_dir="given")
    assert Path("given/spaces.json").read_text() == "kept"


def test_the_current_folder_may_change(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()

    class Wandering(Pair):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            monkeypatch.chdir(tmp_path / "elsewhere")
            return super().reset(seed=seed)

    for run_dir, run in ((None, "runs/host-1"), ("given", "given")):
        monkeypatch.chdir(tmp_path)
        report = trained(Wandering, run_dir=run_dir)
        assert Path(report.run) == Path(run) and Path.cwd() == tmp_path / "elsewhere"
        assert report.policy().game == "host" and (tmp_path / run / "spaces.json").is_file()
    assert not list(Path.cwd().iterdir())


def test_trainings_at_once_have_folders_of_their_own() -> None:
    Path("runs/host-1").mkdir(parents=True)
    Path("runs/host-1/notes").touch()
    runs: dict[type, str] = {}
    kinds = (Pair, Switches)
    threads = [threading.Thread(target=lambda kind=kind: runs.update({kind: trained(kind).run})) for kind in kinds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(runs.values()) == [str(Path("runs", name)) for name in ("host-2", "host-3")]
    for kind, run in runs.items():
        assert kind.action_space.contains(grove_rl.Policy.load(run)(np.zeros(2)))
    assert [path.name for path in Path("runs/host-1").iterdir()] == ["notes"]


def test_a_damaged_description_of_spaces_is_named() -> None:
    file = Path(trained(Pair).run, "spaces.json")
    for text in ("", "[]", "{}"):
        file.write_text(text)
        with pytest.raises(ValueError, match="spaces.json is damaged"):
            grove_rl.Policy.load("host")


def test_bounds_too_narrow_for_32_bits_do_not_scale() -> None:
    class Narrow(Pair):
        observation_space = spaces.Box(np.array([0, 9999.0004]), np.array([1e-46, 9999.00041]), dtype=np.float64)

    policy = trained(Narrow).policy()
    assert policy([0, 9999.0004]) in (5, 6)
    np.testing.assert_array_equal(policy._encoding.encode_batch([[2, 3]]), [[2, 3]])


def test_observations_of_another_form_are_refused() -> None:
    run = trained(Pair).run
    policy = grove_rl.Policy.load(run)
    policy.reset(np.array([True, False]))
    words = r"the observation has shape \(3,\), but must have shape \(2,\)"
    for obs in (np.zeros(3), np.zeros((2, 3))):
        with pytest.raises(ValueError, match=words):
            policy(obs)
    with pytest.raises(ValueError, match="not finite"):
        policy([np.nan, 0])
    with pytest.raises(ValueError, match="`observation_space` is <.*Pair.*>, but must be a space of gymnasium.spaces"):
        grove_rl.Policy.load(run, Pair())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"`action_mask` has shape \(1, 3\), but must have shape \(1, 2\)"):
        policy([0, 0], action_mask=np.ones(3))
    with pytest.raises(ValueError, match="`action_mask` allows no action"):
        policy([0, 0], action_mask=np.zeros(2))
    hidden = np.ma.array([1, 0], mask=[True, False])
    for words, act in [
        ("the observation", lambda: policy(hidden)),
        ("the observation", lambda: policy(np.ma.array(np.zeros((2, 2)), mask=[[0, 0], [0, 1]]))),
        ("`action_mask`", lambda: policy([0, 0], action_mask=hidden)),
        ("`started`", lambda: policy.reset(hidden > 0)),
    ]:
        with pytest.raises(ValueError, match=f"{words} has a masked number"):
            act()
    policy(np.zeros((2, 2)))
    policy.reset(np.array([True, False]))
    for started in (np.ones(3, bool), [1, 0], True):
        with pytest.raises(ValueError, match="`started` has shape .* but must be a vector of truth values, 2"):
            policy.reset(started=started)
    with pytest.raises(ValueError, match="has 1 numbers, but one of the policy has 2"):
        grove_rl.Policy.load(run, spaces.Box(0, 1, (1,)))


def test_tiny_numbers_are_taken_where_numpy_raises() -> None:
    class Tiny(Pair):
        observation_space = spaces.Box(0, 1e-44, (2,), np.float64)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return np.array([1e-50, 0]), {}

        def step(self, action: Any) -> Any:
            return np.array([1e-50, 0]), 1e-50, False, False, {}

    with np.errstate(all="raise"):
        policies = [trained(Tiny).policy(), grove_rl.train("catch", device="cpu", iterations=1).policy()]
        for policy in policies:
            assert policy(np.full(policy.num_features, 1e-50)).shape == ()


@pytest.mark.filterwarnings("error")
def test_numbers_beyond_32_bits_are_refused_without_a_warning() -> None:
    game = grove_rl.train("catch", device="cpu", iterations=1).policy()
    for policy in (trained(Pair).policy(), game):
        for obs in ([1e39] * policy.num_features, np.full((2, policy.num_features), -1e39)):
            with pytest.raises(ValueError, match="an observation holds a number that is not finite"):
                policy(obs)


def test_a_policy_forgets_and_remembers_nothing_unasked() -> None:
    policy = grove_rl.train("recall", device="cpu", iterations=1).policy()
    obs = np.zeros((3, policy.num_features))
    policy(obs)
    memory = policy._memory
    for given in (obs[:2], obs[0]):
        with pytest.raises(ValueError, match="the policy remembers 3 environments, but [12] observations were given; call"):
            policy(given)
    with pytest.raises(ValueError, match="an observation holds a number so large that the logits are not finite"):
        policy(obs + 3e38)
    mask = np.ones((3, policy.num_actions))
    for wrong, words in [(mask * 0, "allows no action"), (mask[:, 1:], "has shape"), (mask.astype(str), "has the type <U")]:
        with pytest.raises(ValueError, match=f"`action_mask` {words}"):
            policy(obs, action_mask=wrong)
    hidden = np.ma.array(obs[0], mask=np.arange(len(obs[0])) == 0)
    for given in ([hidden] * 3, np.ma.array([hidden] * 3)):
        with pytest.raises(ValueError, match="an observation has a masked number"):
            policy(given)
    assert policy._memory is memory and np.isfinite(memory).all()
    policy.reset()
    with pytest.raises(ValueError, match="an observation has a masked number"):
        policy(hidden)
    assert policy(obs[:2]).shape == (2,)


def test_a_policy_without_its_space_asks_for_it() -> None:
    run = trained(Named).run
    obs = Named.observation_space.sample()
    without = grove_rl.Policy.load(run)
    for given in (obs, [obs, obs], (np.zeros(1), 1), np.zeros((2, 2))):
        with pytest.raises(ValueError, match="needs their space: Policy.load.path, env.observation_space"):
            without(given)
    policy = grove_rl.Policy.load(run, Named.observation_space)
    assert policy(obs) in (5, 6) and len(policy([obs, obs])) == 2
    with pytest.raises(ValueError, match="does not fit"):
        policy([{"a": np.zeros(1)}])


class Switches(Pair):
    """The same with two switches as the action, which checks that it is one."""

    action_space = spaces.MultiDiscrete([2, 3], dtype=np.uint8)

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        return super().step(action)


class Scalar(Pair):
    """The same, which needs the type that ``action_space.sample()`` has."""

    def step(self, action: Any) -> Any:
        assert type(action) is type(self.action_space.sample()) and action.item() in (5, 6), repr(action)
        return super().step(action)


def test_actions_have_the_type_of_their_space() -> None:
    policy = trained(Scalar).policy()
    assert type(policy(np.zeros(2))) is np.int64 and policy(np.zeros((1, 2))).dtype == np.int64
    policy = trained(Switches).policy()
    assert Switches.action_space.contains(policy(np.zeros(2)))
    for count in (0, 1, 3):
        actions = policy(np.zeros((count, 2)))
        assert actions.shape == (count, 2) and actions.dtype == np.uint8
    for count in (0, 3):
        actions = trained(Pair).policy()(np.zeros((count, 2)))
        assert actions.shape == (count,) and actions.dtype == np.int64


def test_one_observation_is_told_from_a_batch_by_its_form() -> None:
    policy = trained(Named).policy()
    for obs in ({"a": np.array([2000.0]), "b": 1}, {"a": [1], "b": np.int64(0), "more": 3}):
        assert policy(obs) in (5, 6) and policy([obs, obs]).shape == (2,)
    for parts, words in (
        ({"a": np.zeros((2, 1)), "b": 0}, r"a part has shape \(2, 1\), but must have shape \(1,\)"),
        ({"a": np.zeros(1), "b": np.zeros(2, int)}, r"a part has shape \(2,\), but must have shape \(\)"),
    ):
        with pytest.raises(ValueError, match=words):
            policy(parts)

    class Picture(Pair):
        observation_space = spaces.Box(0, 255, (4, 4), np.uint8)

    picture = np.zeros((4, 4))
    policy = trained(Picture).policy()
    assert policy(picture) in (5, 6) and policy([picture, picture]).shape == (2,)
    # It is not cast to the type of the space.
    np.testing.assert_array_equal(policy._encoding.flatten(picture + 0.5), np.full(16, 0.5))

    class Twice(Pair):
        observation_space = spaces.Tuple([spaces.Discrete(3), spaces.Box(0, 1, (2,))])

    policy = trained(Twice).policy()
    assert policy((1, [0.5, 3])) in (5, 6) and policy([(1, np.zeros(2)), (2, np.ones(2))]).shape == (2,)

    class Parts(Pair):
        observation_space = spaces.Dict({"on": spaces.MultiBinary(1), "picture": spaces.Box(0, 255, (2, 1), np.uint8)})

    parts = {"on": [1], "picture": np.array([[0.25], [0.5]])}
    np.testing.assert_array_equal(trained(Parts).policy()._encoding.flatten(parts), [1, 0.25, 0.5])


@pytest.mark.filterwarnings("ignore:.*precision lowered")
def test_batches_of_vector_environments_are_taken_apart() -> None:
    class Nested(Pair):
        observation_space = spaces.Tuple([spaces.Discrete(3), spaces.Dict({"a": spaces.Box(0, 1, (2, 1)), "b": BIT}), BIT])

    class Texts(Pair):
        observation_space = spaces.Dict({"text": spaces.Text(4), "both": spaces.Tuple([spaces.Text(2), BIT])})

    class Either(Pair):
        observation_space = spaces.Tuple([spaces.OneOf([spaces.Box(0, 1, (2,)), BIT]), BIT])

    for kind in (Named, Nested, Texts, Either):
        policy = trained(kind).policy()
        for count in (1, 3):
            envs = gymnasium.vector.SyncVectorEnv([kind] * count)
            batch, _ = envs.reset(seed=0)
            rows = list(gymnasium.vector.utils.iterate(envs.observation_space, batch))
            np.testing.assert_array_equal(policy.logits(batch), policy.logits(rows))
            assert policy(batch).shape == (count,) and policy(rows[0]) == policy(batch)[0]


def test_a_space_with_other_parts_or_bounds_is_refused() -> None:
    class Parts(Pair):
        one, two, bit = spaces.Box(-1, 1, (1,)), spaces.Box(-1, 1, (2,)), spaces.Discrete(2)
        observation_space = spaces.Dict({"a": one, "b": two, "c": bit})

    class Vector(Pair):
        observation_space = spaces.Box(0, 1, (3,))

    class Own(spaces.Box):
        pass

    parts, vector = trained(Parts).run, trained(Vector).run
    one, two, bit = Parts.one, Parts.two, Parts.bit
    for run, space, words in [
        (parts, spaces.Dict({"a": two, "b": one, "c": bit}), "put together"),
        (parts, spaces.Dict({"a": one, "d": two, "c": bit}), "put together"),
        (parts, spaces.Dict({"a": one, "b": two, "c": spaces.Box(0, 1, (2,))}), "put together"),
        (parts, spaces.Dict({"a": one, "b": two, "c": spaces.Discrete(2, start=1)}), "put together"),
        (parts, spaces.Dict({"a": one, "b": spaces.Box(-9, 9, (2,)), "c": bit}), "scaled"),
        (vector, spaces.Discrete(3), "put together"),
        (vector, spaces.Dict({"a": spaces.Box(0, 1, (1,)), "b": spaces.Box(0, 1, (2,))}), "put together"),
        (vector, spaces.Box(0, 255, (3,), np.uint8), "scaled"),
    ]:
        with pytest.raises(ValueError, match=f"an observation of .* is {words} otherwise than those of the policy: give"):
            grove_rl.Policy.load(run, space)
    same = spaces.Dict({"a": Own(-1, 1, (1,), np.float64), "b": two, "c": bit})
    for space in (same, spaces.flatten_space(same)):
        assert grove_rl.Policy.load(parts, space)(space.sample()) in (5, 6)
    # An earlier run's file has no parts.
    file = Path(parts, "spaces.json")
    saved = json.loads(file.read_text())
    del saved["structure"]
    file.write_text(json.dumps(saved))
    assert grove_rl.Policy.load(parts, same)(same.sample()) in (5, 6)


def test_draws_repeat_with_their_seed() -> None:
    run = trained(Pair).run

    def drawn(seed: int | None) -> list[int]:
        return grove_rl.Policy.load(run, seed=seed)(np.zeros((64, 2)), deterministic=False).tolist()

    assert drawn(1) == drawn(1) != drawn(2) and drawn(None) != drawn(None)
    with pytest.raises(ValueError, match="`seed` is -1, but must be a whole number"):
        drawn(-1)


def test_policies_are_pickled_and_copied_with_their_memory() -> None:
    for policy in (trained(Named).policy(), grove_rl.train("recall", device="cpu", iterations=1).policy()):
        obs = [Named.observation_space.sample()] * 3 if policy.game == "host" else np.zeros((3, policy.num_features))
        policy(obs)
        pickled = pickle.dumps(policy)
        shutil.rmtree("runs", ignore_errors=True)
        for other in (pickle.loads(pickled), copy.deepcopy(policy), copy.copy(policy)):
            assert other._memory is not policy._memory and other._rng is not policy._rng
            np.testing.assert_array_equal(other._memory, policy._memory)
            draws = [copy.deepcopy(one)(obs, deterministic=False) for one in (policy, other)]
            np.testing.assert_array_equal(*draws)
            assert repr(other) == repr(policy)
            np.testing.assert_array_equal(other.logits(obs), copy.deepcopy(policy).logits(obs))


def test_numbers_are_observations_of_discrete_spaces() -> None:
    class Cell(Pair):
        observation_space = spaces.Discrete(4)

    run = trained(Cell).run
    with pytest.raises(ValueError, match="needs their space: Policy.load.path, env.observation_space"):
        grove_rl.Policy.load(run)(0)
    policy = grove_rl.Policy.load(run, Cell.observation_space)
    assert policy(3) in (5, 6) and policy(np.array([0, 1, 3])).shape == (3,)
    for outside in (-1, 4):
        with pytest.raises(ValueError, match="does not fit Discrete.4. .*a number is out of range"):
            policy(outside)
    for policy in (policy, trained(Pair).policy(), trained(Named).policy()):
        for obs in (None, 0.5, object()):
            with pytest.raises(ValueError):
                policy(obs)


def test_the_space_of_a_game_has_its_size() -> None:
    run = grove_rl.train("catch", device="cpu", iterations=1).run
    space = grove_rl.GroveEnv("catch").observation_space
    assert grove_rl.Policy.load(run, space)(space.sample()) in range(3)
    with pytest.raises(ValueError, match="an observation of catch has shape .*, but one of Box.* has shape .2,."):
        grove_rl.Policy.load(run, Pair.observation_space)


def test_the_program_exports_the_policy_of_an_environment_of_python() -> None:
    run = trained(Pair).run
    for end in ("onnx", "json"):
        subprocess.run([*PROGRAM, "export", run, "--format", end, "--out", f"policy.{end}"], check=True)
    obs = np.array([[900, 1], [100, -1], [3, 0]], np.float32)
    policy, about = grove_rl.Policy.load(run), json.loads(Path("policy.json").read_text())
    spaces_of_run = json.loads(Path(run, "spaces.json").read_text())
    x = (obs - spaces_of_run["center"]) / spaces_of_run["scale"]
    tensors = [np.reshape(tensor["values"], tensor["shape"]) for tensor in about["tensors"]]
    for weight, bias in zip(tensors[:-2:2], tensors[1:-2:2], strict=True):
        x = np.maximum(x @ weight + bias, 0)
    assert (about["env"], about["activation"], len(about["actions"])) == ("host", "relu", 2)
    np.testing.assert_allclose(x @ tensors[-2] + tensors[-1], policy.logits(obs), rtol=1e-4, atol=1e-6)
    assert Path("policy.onnx").read_bytes().count(b"logits") > 1
