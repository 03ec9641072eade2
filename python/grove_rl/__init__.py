"""Grove: GRPO for games, Gymnasium environments and small language models.

- :func:`make_vec` and ``gymnasium.make("grove/Fruit-v0")``: the built-in games as Gymnasium environments;
- :func:`train`: training of policies for built-in games and for Python environments, and of language models;
- :class:`Policy` and :class:`LanguageModel`: trained models;
- :class:`Tracker`: a callback that logs a run's records to W&B or Trackio.
"""

from importlib.metadata import version

from ._envs import GroveEnv, GroveVectorEnv, games, make_vec, register_envs
from ._language import LanguageModel
from ._policy import Policy
from ._tracking import Tracker
from ._train import Report, train

register_envs()

__version__ = version("grove_rl")

__all__ = [
    "GroveEnv",
    "GroveVectorEnv",
    "LanguageModel",
    "Policy",
    "Report",
    "Tracker",
    "__version__",
    "games",
    "make_vec",
    "register_envs",
    "train",
]
