"""Language models: their training with reward functions, and generation."""

import copy
import json
import os
import pickle
import shutil
import signal
import subprocess
import threading
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from common import BRIEF, PROGRAM, SPLIT, TASK, Table, one, unjudged

import grove_rl

CHAT = {"prompt": [{"role": "user", "content": "a"}]}


def test_a_language_model_is_trained_with_reward_functions() -> None:
    calls: list[dict] = []

    def many_a(prompts: list[str], completions: list[str], limit: list[int], large: list[int], **_: Any) -> list:
        calls.append({"prompts": prompts, "limit": limit, "large": large})
        return [min(text.count("a"), most) / most for text, most in zip(completions, limit)]

    task = [{"prompt": f"{i}>", "solution": "ab", "limit": 4, "large": (1 << 70) + 1} for i in range(20)]
    report = grove_rl.train(
        task=task,
        reward=[many_a, unjudged],
        iterations=3,
        fit={"iterations": 0},
        generation={"num_prompts": 4, "group_size": 4, "max_new_tokens": 6},
        checkpoint={"eval_episodes": 4},
    )
    assert calls and set(calls[0]["limit"]) == {4} and set(calls[0]["large"]) == {(1 << 70) + 1}
    # All completions of an iteration, equal ones too.
    assert sum(len(call["prompts"]) == 16 for call in calls) == 3
    card = Path(report.run, "model", "README.md").read_text()
    assert "3 iterations" in card and "max_new_tokens = 6" in card and "kl_coef" not in card
    model = grove_rl.LanguageModel.load(report.run)
    assert isinstance(model.generate("1>", max_new_tokens=4), str)
    assert len(model.generate(["1>", "2>"], max_new_tokens=4, num_completions=3)[1]) == 3
    for wrong in ({"temperature": -1.0}, {"top_p": 0.0}, {"min_p": 1.0}, {"stop": [""]}):
        with pytest.raises(ValueError, match=f"`{next(iter(wrong))}` is out of range: must be"):
            model.generate("1>", max_new_tokens=4, **wrong)

    # The same model with a chat template.
    template = "{% if digit %}{{ raise_exception('digits ' ~ digit ~ tools[0].digit) }}{% endif %}1>"
    Path(report.run, "model", "chat_template.jinja").write_text(template)
    model = grove_rl.LanguageModel.load(report.run)
    question = [{"role": "user", "content": "x"}]
    assert model.generate(question, max_new_tokens=4) == model.generate("1>", max_new_tokens=4)
    with pytest.raises(ValueError, match="digits 27"):
        model.generate(question, chat_template_kwargs={"digit": 2}, tools=[{"digit": 7}])
    for prompts, values, words in [
        ("1>", {"tools": []}, "`tools` is for conversations, but a prompt is a string"),
        (question, {"tools": {"a"}}, "`tools` is .*, which is not JSON"),
        (question, {"chat_template_kwargs": [1]}, "`chat_template_kwargs` is .*, but must be an object"),
    ]:
        with pytest.raises(ValueError, match=words):
            model.generate(prompts, **values)


#: A brief run of a language model, and draws that tell one model from another.
LEARNT: dict[str, Any] = {"task": TASK, "reward": one, **BRIEF}
DRAWS = {"max_new_tokens": 8, "temperature": 1.0, "num_completions": 4}


def test_a_language_model_is_pickled_by_its_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = grove_rl.LanguageModel.load(grove_rl.train(**LEARNT).run)
    pickled = pickle.dumps(model)
    assert len(pickled) < 1000 < model.num_params
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    for other in (pickle.loads(pickled), copy.deepcopy(model)):
        assert repr(other) == repr(model) and other.context == model.context
        options = {"max_new_tokens": 8, "temperature": 1.0, "seed": 3}
        assert other.generate("1>", **options) == model.generate("1>", **options)
    shutil.rmtree(folder / "runs")
    with pytest.raises(ValueError, match="runs"):
        pickle.loads(pickled)


def test_a_language_model_is_found_by_the_name_of_its_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = grove_rl.train(**LEARNT).run
    assert Path(run) == Path("runs/python-1")
    model = grove_rl.LanguageModel.load("python")
    assert repr(model) == repr(grove_rl.LanguageModel.load(run))
    more = grove_rl.train(model="python", **LEARNT).run
    assert tomllib.loads(Path(more, "config.toml").read_text())["model"]["path"] == run
    with pytest.raises(ValueError, match="nobody"):
        grove_rl.LanguageModel.load("nobody")
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    assert copy.deepcopy(model).generate("1>", max_new_tokens=4) == model.generate("1>", max_new_tokens=4)


def test_a_folder_in_a_model_is_not_that_of_a_run() -> None:
    runs = [grove_rl.train(seed=seed, **LEARNT).run for seed in (1, 2)]
    shutil.copytree(Path(runs[0], "model"), "own")
    shutil.copytree(Path(runs[1], "model"), "own/model")
    Path("own", "checkpoints").mkdir()
    texts = [grove_rl.LanguageModel.load(path).generate("1>", **DRAWS) for path in (*runs, "own")]
    assert texts[2] == texts[0] != texts[1]
    # An iteration that changes next to nothing.
    more = grove_rl.train(model="own", learning_rate=1e-12, **LEARNT).run
    assert tomllib.loads(Path(more, "config.toml").read_text())["model"]["path"] == "own"
    assert grove_rl.LanguageModel.load(more).generate("1>", **DRAWS) == texts[0]


def test_a_run_that_has_not_ended_has_the_best_model_of_its_checkpoints() -> None:
    runs = [grove_rl.train(seed=seed, **LEARNT).run for seed in (1, 2)]
    texts = [grove_rl.LanguageModel.load(run).generate("1>", **DRAWS) for run in runs]
    # The model card is written last.
    shutil.rmtree(Path(runs[0], "model"))
    shutil.copytree(Path(runs[1], "model"), Path(runs[0], "model"))
    Path(runs[0], "model", "README.md").unlink()
    for path in (runs[0], f"{runs[0]}/best"):
        assert grove_rl.LanguageModel.load(path).generate("1>", **DRAWS) == texts[0] != texts[1]
    with pytest.warns(UserWarning, match="the run in .* has not ended, so that its model may be that of its last"):
        grove_rl.train(model=runs[0], **LEARNT)
    game = grove_rl.train("catch", device="cpu", iterations=1).run
    for load in (grove_rl.LanguageModel.load, lambda path: grove_rl.train(model=path, **LEARNT)):
        with pytest.raises(ValueError, match="is of a game, and has no language model"):
            load(game)


@pytest.mark.filterwarnings("ignore:iteration:UserWarning")
def test_completions_that_nobody_judged_have_no_score() -> None:
    def reward(completions: list[str], answer: list[str | None] | None = None, **_: Any) -> list[float | None]:
        answers = answer or [None] * len(completions)
        return [None if own is None else -1.0 - len(text) for own, text in zip(answers, completions, strict=True)]

    records: list[dict] = []
    with pytest.warns(UserWarning, match="no score: none of the 2 completions of held-out prompts could be scored"):
        report = grove_rl.train(
            task=[{"prompt": f"{i}>", "solution": "ab", "answer": "ab"} for i in range(4)],
            eval_task=[{"prompt": f"{i}>", "solution": "ab"} for i in range(4, 8)],
            reward=reward,
            callback=records.append,
            **(BRIEF | {"iterations": 2}),
        )
    assert np.isnan(report.mean_score) and report.details["num_unjudged"] > 0
    for found in (report.details, records[-1]["evaluation"]):
        assert not {"mean_score", "std_error", "min_score", "max_score", "pass_at_1"} & found.keys()
    assert records[-1]["score"] < 0


@pytest.mark.filterwarnings("ignore:iteration:UserWarning")
def test_reward_functions_of_one_name_have_parts_of_their_own() -> None:
    def constant(name: str, reward: float) -> Any:
        def function(completions: list[str], **_: Any) -> list[float]:
            return [reward] * len(completions)

        function.__name__ = name
        return function

    records: list[dict] = []
    grove_rl.train(
        task=TASK,
        reward=[constant("f", 1), constant("f", 2), constant("f_0", 3)],
        callback=records.append,
        **BRIEF,
    )
    assert records[0]["rewards"] == {"f_0": 3, "f_1": 1, "f_2": 2}


@pytest.mark.filterwarnings("ignore:iteration:UserWarning")
def test_a_solution_may_be_a_number() -> None:
    given: set[Any] = set()

    def reward(completions: list[str], solution: list[int], **_: Any) -> list[float]:
        given.update(solution)
        return [0.0] * len(completions)

    report = grove_rl.train(
        task=[{"prompt": f"{i}>", "solution": 10 * i} for i in range(4)],
        reward=reward,
        **(BRIEF | {"iterations": 2, "fit": {"iterations": 1}}),
    )
    assert given and given <= {0, 10, 20, 30} and report.env_steps > 0


@pytest.mark.parametrize("reward", [np.nan, np.inf, "1", {}, 1e16, np.timedelta64(5, "ns")])
def test_rewards_of_texts_are_finite_numbers(reward: Any) -> None:
    def judge(completions: list[str], **_: Any) -> list[Any]:
        return [reward] * len(completions)

    with pytest.raises(RuntimeError, match="judge returned the reward .* but must return a finite number, at most 1e.15"):
        grove_rl.train(task=TASK, reward=judge, **BRIEF)


@pytest.mark.filterwarnings("ignore:iteration:UserWarning")
def test_reward_functions_have_lists_of_their_own() -> None:
    def clearing(prompts: list[Any], completions: list[str], solution: list[str]) -> list[float]:
        rewards = [0.0] * len(completions)
        for values in (prompts, completions, solution):
            values.clear()
        return rewards

    def one(completions: list[str], solution: list[str], **_: Any) -> list[float]:
        return [1.0 for _ in zip(completions, solution, strict=True)]

    assert grove_rl.train(task=TASK, reward=[clearing, one], **BRIEF).mean_score == 1.0


@pytest.mark.filterwarnings("ignore:iteration:UserWarning")
def test_reward_functions_get_the_columns_of_all_prompts_each_time() -> None:
    seen: list[Any] = []

    def judge(completions: list[str], answer: list[Any], hint: list[Any], **_: Any) -> list[float]:
        seen.extend(answer)
        assert hint == [None] * len(completions) or hint[-1] == "h"
        return [1.0] * len(completions)

    task = [TASK[0] | {"answer": 3}] + TASK[1:]
    one = BRIEF | {"generation": BRIEF["generation"] | {"num_prompts": 1}, "iterations": 4}
    grove_rl.train(task=task, eval_task=[{"prompt": "9>", "solution": "ab", "hint": "h"}], reward=judge, **one)
    assert {3, None} == set(seen)


@pytest.mark.parametrize(
    ("task", "train", "test"),
    [
        ("abcde", "abcd", "e"),
        ("abac", "aba", "c"),
        ("abcbc", "abb", "cc"),
        ([{"prompt": "a", "split": "test"}, "b", "a", {"prompt": "c", "split": None}, "d"], "bc", "aad"),
        (SPLIT[::-1], ["1>"], ["2>"]),
        ([[{"content": "a", "role": "user"}], [{"role": "user", "content": "a"}], "b"], "  ", "b"),
        ([CHAT | {"tools": [{"a": 1}], "split": "train"}, CHAT | {"tools": [{"b": 1}], "split": "test"}], " ", " "),
    ],
)
def test_no_prompt_is_in_both_splits(task: Any, train: Any, test: Any) -> None:
    request, _ = grove_rl._task.text_request(list(task), None, len, None)
    texts = [[record["text"] for record in request[split]] for split in ("train", "test")]
    assert texts == [[text.strip() for text in given] for given in (train, test)]


def test_a_single_prompt_is_evaluated_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="`task` has a single prompt, so that the model is also evaluated on it"):
        request, _ = grove_rl._task.text_request(["a", "a"], None, len, None)
    assert request["train"] == request["test"] and len(request["train"]) == 2


def test_a_reward_function_may_have_no_name() -> None:
    class One:
        __name__ = 3

        def __call__(self, completions: list[str], **_: Any) -> list[float]:
            return [1.0] * len(completions)

    assert grove_rl.train(task=TASK, reward=One(), **BRIEF).mean_score == 1.0


def test_rewards_of_texts_are_a_list() -> None:
    def judge(completions: list[str], **_: Any) -> Any:
        return dict.fromkeys(range(len(completions)), 1.0)

    with pytest.raises(RuntimeError, match="judge returned .* but must return a list"):
        grove_rl.train(task=TASK, reward=judge, **BRIEF)


@pytest.fixture
def model() -> grove_rl.LanguageModel:
    return grove_rl.LanguageModel.load(grove_rl.train(task=TASK, reward=one, **BRIEF).run)


def test_arguments_of_a_generation_are_refused_by_name(model: grove_rl.LanguageModel) -> None:
    for name, value in [
        ("max_new_tokens", -1),
        ("max_new_tokens", 2.5),
        ("top_k", -1),
        ("num_completions", 0),
        ("seed", 1 << 64),
        ("temperature", "1"),
        ("top_p", np.nan),
        ("stop", 1),
        ("stop", [1]),
        ("prompts", {"prompt": "a"}),
        ("prompts", {"a"}),
        ("prompts", Table()),
    ]:
        with pytest.raises(ValueError, match=f"`{name}` is .*, but must be "):
            model.generate(**({"prompts": "1>"} | {name: value}))
    for prompts, words in [
        ("", "the prompt is empty"),
        ([{"role": "user", "content": "a"}], "has no chat template"),
        ([{"role": "user"}], "must have a `role`, a string, and a `content`"),
    ]:
        with pytest.raises(ValueError, match=words):
            model.generate(prompts)


def test_one_stop_text_is_no_list_of_letters(model: grove_rl.LanguageModel) -> None:
    options: dict[str, Any] = {"max_new_tokens": 20, "temperature": 1.0, "seed": (1 << 64) - 1, "num_completions": 8}
    whole = model.generate("1>", **options)
    assert model.generate("1>", stop="ab>1", **options) == [text.split("ab>1")[0] for text in whole]
    assert model.generate("1>", stop=None, **options) == whole
    assert any("a" in text for text in whole)


def test_the_first_completion_is_that_of_the_program(model: grove_rl.LanguageModel) -> None:
    options: dict[str, Any] = {"max_new_tokens": 20, "temperature": 1.0, "seed": 3}
    text = model.generate("1>", **options)
    assert model.generate(["1>", "2>"], **options)[0] == text
    words = ["generate", model._path, "1>", "--temperature", "1", "--seed", "3", "--max-new-tokens", "20", "--json"]
    done = subprocess.run([*PROGRAM, *words], capture_output=True, check=True)
    assert json.loads(done.stdout)["completions"][0]["text"] == text


def test_ctrl_c_ends_a_generation(model: grove_rl.LanguageModel) -> None:
    native, begins = model._native, threading.Event()

    class Beginning:
        def generate(self, *arguments: Any) -> Any:
            begins.set()
            return native.generate(*arguments)

    def interrupt() -> None:
        begins.wait()
        os.kill(os.getpid(), signal.SIGINT)

    model._native = Beginning()
    thread = threading.Thread(target=interrupt)
    thread.start()
    # All completions would take minutes.
    with pytest.raises(KeyboardInterrupt):
        model.generate(["1>"] * 100_000, max_new_tokens=1000, temperature=1.0, num_completions=2)
    thread.join()


def test_what_a_reward_function_raises_is_known() -> None:
    def raising(error: BaseException) -> Any:
        def reward(**_: Any) -> Any:
            raise error

        return reward

    for error in (KeyboardInterrupt(), SystemExit(3)):
        with pytest.raises(type(error)):
            grove_rl.train(task=TASK, reward=raising(error), **BRIEF)
    with pytest.raises(RuntimeError, match="no such word") as caught:
        grove_rl.train(task=TASK, reward=raising(KeyError("no such word")), **BRIEF)
    assert isinstance(caught.value.__cause__, KeyError)
