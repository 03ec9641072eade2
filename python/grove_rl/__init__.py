"""Grove: GRPO, vectorised everywhere.

- :func:`make_vec` and ``gymnasium.make("grove/Fruit-v0")``: the built-in games as Gymnasium environments;
- :func:`train`: policies for built-in games, for environments of Python, and language models;
- :class:`Policy` and :class:`LanguageModel`: what they have learnt;
- :class:`Tracker`: a run's records in W&B or Trackio.
"""

from ._envs import GroveEnv, GroveVectorEnv, games, make_vec, register_envs
from ._language import LanguageModel
from ._policy import Policy
from ._tracking import Tracker
from ._train import Report, train

register_envs()

__all__ = [
    "GroveEnv",
    "GroveVectorEnv",
    "LanguageModel",
    "Policy",
    "Report",
    "Tracker",
    "games",
    "make_vec",
    "register_envs",
    "train",
]
