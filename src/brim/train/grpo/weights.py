"""The weights that draw the responses, and the bound on their age.

The model that is trained draws them itself; or a whole copy of it, where it is sharded; or a server, which is told to
load the weights that were written for it.
"""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from brim.core.atomic import atomic_directory
from brim.core.errors import BrimError
from brim.train.grpo.config import GrpoConfig
from brim.train.grpo.hooks import Reload
from brim.train.model import save_model
from brim.train.ranks import Ranks

if TYPE_CHECKING:
    from torch import Tensor

    from brim.data.tokenizer.base import Tokenizer

WEIGHTS = "weights"


class Weights:
    """The weights that draw responses."""

    def __init__(
        self,
        model: Any,
        config: GrpoConfig,
        ranks: Ranks,
        tokenizer: "Tokenizer",
        reload: Reload | None,
        whole: "Callable[[], dict[str, Tensor]]",
    ) -> None:
        """`whole` returns the weights by name; where they are sharded, every rank must call it."""
        self.version = 0
        """Optimizer steps that they have seen."""
        self.player: Any = model
        """The model that draws, unless a server does: the one that is trained, or a whole copy of one that is sharded,
        with the weights of the latest rollout."""
        self._model = model
        self._config = config
        self._ranks = ranks
        self._tokenizer = tokenizer
        self._reload = reload
        self._whole = whole
        self._told = False
        if config.fsdp:
            self.player = copy.deepcopy(model)
            self.player.requires_grad_(False)

    def refresh(self, step: int) -> None:
        """Bring the weights up to date, as far as they can be, before a rollout.

        Raises:
            BrimError: They are too old, or the servers could not load them.
        """
        if self.player is not self._model:
            self.player.load_state_dict(self._whole())
        if not self._config.servers:
            self.version = step
            return
        # A resumed run cannot know what the servers have loaded.
        if self._reload is not None and (not self._told or step - self.version >= self._config.reload_every):
            self._tell(self._reload, step)
        self._check_age(step)

    def refresh_for_evaluation(self, step: int) -> None:
        """Bring the weights up to date before an evaluation, as far as they can be, however old they may be."""
        if not self._config.servers:
            self.refresh(step)
        elif self._reload is not None and not (self._told and step == self.version):
            self._tell(self._reload, step)

    def _tell(self, reload: Reload, step: int) -> None:
        weights = self._whole()
        directory = Path(self._config.output) / WEIGHTS

        def write_and_tell() -> None:
            with atomic_directory(directory, replaces=lambda there: any(there.glob("*config.json"))) as target:
                save_model(target, self._model, weights, self._tokenizer)
            try:
                reload(directory, step)
            except BrimError:
                raise
            except Exception as error:
                raise BrimError(
                    f"the servers could not load the weights of step {step}: reload raised {type(error).__name__}: "
                    f"{error}"
                ) from None

        self._ranks.together(lambda: write_and_tell() if self._ranks.is_main else None)
        self.version = step
        self._told = True

    def _check_age(self, step: int) -> None:
        last = step + self._config.steps_per_rollout * self._config.passes - 1
        if last - self.version <= self._config.max_staleness:
            return
        advice = "reload them more often (reload_every)"
        if self._reload is None:
            advice = "give a function that makes the servers load new ones (reload)"
        raise BrimError(
            f"the servers' weights are those of step {self.version}, and would be {last - self.version} steps old when "
            f"their responses are trained on, more than max_staleness {self._config.max_staleness}; {advice}, or raise "
            "max_staleness"
        )
