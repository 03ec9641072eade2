"""Records of a run for experiment trackers."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from types import TracebackType
from typing import Any

from . import _native


class Tracker:
    """A callback of :func:`grove_rl.train` that logs every record to W&B, Trackio, or a module of their interface.

    Metrics have the names of TensorBoard's, for instance ``charts/episodic_return`` and ``losses/approx_kl``, over the
    number of environment steps; of language models, of tokens::

        import wandb  # or: import trackio

        with grove_rl.Tracker(wandb, project="grove", mode="offline") as tracker:
            grove_rl.train("fruit", callback=tracker)

    It never stops a run: the first exception of the module is a warning, and nothing more is logged.
    """

    def __init__(self, module: Any, **init: Any) -> None:
        """Begins a run of the tracker.

        Args:
            module: The module ``wandb`` or ``trackio``: functions ``init(project=...)``, ``log(metrics, step=...)``
                and ``finish()``.
            **init: Arguments of ``module.init``; ``project`` is ``grove`` by default.
        """
        self._module = module
        self._run = module.init(**{"project": "grove", **init})
        self._has_failed = False

    def __call__(self, record: dict[str, Any]) -> None:
        """Logs the record of an iteration."""
        if self._has_failed:
            return
        metrics = _native.scalars(json.dumps(record))
        self._attempt(lambda: self._module.log(metrics, step=record["env_steps"]))

    def finish(self) -> None:
        """Ends the tracker's run, also after a failure."""
        self._attempt(self._module.finish)

    def _attempt(self, work: Callable[[], Any]) -> None:
        try:
            work()
        except Exception as error:
            if self._has_failed:
                return
            self._has_failed = True
            warnings.warn(
                f"tracking stopped: {error!r}. The run continues, and metrics.jsonl stays complete", stacklevel=3
            )

    def __enter__(self) -> Tracker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.finish()
