"""The options of a GRPO run. Nothing here imports torch."""

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self, get_args

from brim.core.errors import MismatchError, OptionError
from brim.core.options import check_counts, from_dict, one_of, resumed
from brim.envs.puzzle.config import GymConfig
from brim.generate.config import Auto, check_batch_size
from brim.train.config import MAY_CHANGE, PATHS, ModelConfig, Schedule

Loss = Literal["grpo", "dr_grpo", "dapo"]
Scale = Literal["group", "batch", "none"]
Ratio = Literal["token", "sequence"]
KlIn = Literal["loss", "reward"]
OldLogprobs = Literal["decode", "score"]

GEN_BATCH_SIZE = 64
CORRECTION = 2.0
"""Upper limit of the weights of truncated importance sampling, by default."""
CHANGEABLE = (
    *MAY_CHANGE,
    "max_steps",
    "reward_timeout",
    "servers",
    "key_env",
    "reload",
    "judge_servers",
    "gym.host",
    "gym.port",
    "gym.transport",
    "gym.connect_timeout",
    "gym.read_timeout",
    "gym.episode_timeout",
    "gym.max_retries",
    "gym.retry_delay",
    "gym.max_retry_delay",
    "eval_prompts",
    "eval_samples",
    "eval_temperature",
    "show_groups",
)
"""Options that may change when a run is resumed: how long it is, where servers are, and what is only looked at."""


@dataclass(frozen=True, kw_only=True)
class GrpoConfig(ModelConfig):
    """Options of group relative policy optimization (Shao et al. 2024). A group is the attempts at one task."""

    # Tasks
    dataset: str = ""
    """Prompts: a name of `brim.generate.prompts.registry`, such as arithmetic; reasoning-gym:TASK; arc:DATA; or a JSONL
    file."""
    split: str = "train"
    gym: GymConfig | None = None
    """Play episodes on a puzzle server, instead of answering prompts."""

    # Rewards
    rewards: tuple[str, ...] = ("answer",)
    """Reward functions, added up: built-in names, module:function or file.py:function, each with an optional weight
    before it, such as 0.2*format."""
    reward_timeout: float | None = 10.0
    """Upper limit of the seconds of one call of a reward function; None is no limit."""
    judge_servers: tuple[str, ...] = ()
    """Addresses of the model servers of the reward `judge`."""
    judge_model: str | None = None

    # Rollouts
    group_size: int = 8
    """Attempts at each task."""
    prompts_per_step: int = 16
    """Groups that an optimizer step is taken on."""
    steps_per_rollout: int = 1
    """Steps that a rollout has groups for. More of them make larger batches for generation, and older responses."""
    passes: int = 1
    """Times that the groups of a rollout are trained on."""
    max_staleness: int = 8
    """Upper limit of the optimizer steps between the weights that drew a response and those that are trained on it."""
    max_new_tokens: int = 256
    """Upper limit of the tokens of a response; in an episode, of one move."""
    temperature: float = 1.0
    """Sampling temperature. Training scores responses at the same one."""
    resample: int = 3
    """Rounds in which groups whose rewards do not differ are replaced by further ones; 0 trains on fewer groups."""
    mask_truncated: bool | None = None
    """Do not train on attempts that were cut off; their rewards still count in the mean of their group. The default is
    yes for responses, and no for episodes: one that runs out of moves has failed."""
    gen_batch_size: int | Auto = GEN_BATCH_SIZE
    """Upper limit of the responses that are generated at once."""

    # The objective
    loss: Loss = "dapo"
    """How the losses of tokens are averaged: grpo (over the tokens of a response, then over responses), dapo (over all
    tokens of the step), dr_grpo (their sum, divided by max_new_tokens and the number of responses)."""
    scale_rewards: Scale | None = None
    """Divisor of the difference of a reward to the mean of its group: the standard deviation in the group, that in
    the whole step, or nothing. The default is group, and none for dr_grpo."""
    clip_low: float = 0.2
    """The ratio of new to old probability gains nothing below 1 - clip_low."""
    clip_high: float = 0.2
    """The ratio gains nothing above 1 + clip_high."""
    ratio: Ratio = "token"
    """Importance ratios of single tokens, or one of the whole response: the geometric mean (GSPO)."""
    kl_coef: float = 0.0
    """Weight of the KL divergence to the reference; 0 needs no reference."""
    kl_in: KlIn = "loss"
    """Where the KL divergence counts: in the loss of every token, or in the reward of every response."""
    reference: str | None = None
    """The model to stay close to. By default the one that training begins with: below the LoRA adapters, or a frozen
    copy."""
    old_logprobs: OldLogprobs | None = None
    """The old log-probabilities of the ratio: as recorded while decoding, or scored again by the training code before
    the first step on a rollout. The default is decode, and score for responses of a server."""
    correction: float | None = None
    """With scored log-probabilities, the upper limit of the weights that correct for the difference to those that
    tokens were drawn with (truncated importance sampling); 0 corrects nothing. The default is 2."""
    max_mismatch: float = 0.1
    """Mean absolute difference, in nats, between log-probabilities from drawing and from training with the same
    weights, above which the run is refused."""
    tf_batch_size: int = 64
    """Upper limit of the responses in a microbatch."""
    token_budget: int = 8192
    """Upper limit of the tokens in a microbatch."""

    # Responses of a server
    servers: tuple[str, ...] = ()
    """Addresses of OpenAI-compatible servers, such as vLLM, that draw the responses instead of this process."""
    server_model: str | None = None
    key_env: str | None = None
    """Environment variable that holds the key of the servers."""
    reload: str | None = None
    """module:function or file.py:function, called with (directory of the weights, step) before a rollout, which makes
    the servers load them."""
    reload_every: int = 1
    """Optimizer steps after which the servers' weights are reloaded."""

    # Evaluation
    eval_dataset: str | None = None
    """Held-out prompts; by default those of `eval_split` of the same data set."""
    eval_split: str = "test"
    eval_prompts: int = 64
    """Held-out tasks of an evaluation; 0 for none."""
    eval_samples: int = 1
    """Attempts at each of them."""
    eval_temperature: float = 0.0
    """Sampling temperature of evaluations; 0 takes the likeliest token."""
    eval_every: int | None = None
    """Optimizer steps between evaluations. There is always one before the first step and one after the last."""
    show_groups: int = 4
    """Groups of a rollout, and tasks of an evaluation, that are kept to look at."""

    schedule: Schedule = "constant"
    save_every: int | None = 50
    log_every: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, kind in (("loss", Loss), ("ratio", Ratio), ("kl_in", KlIn)):
            one_of(name, getattr(self, name), get_args(kind))
        if self.scale_rewards is not None:
            one_of("scale_rewards", self.scale_rewards, get_args(Scale))
        if self.old_logprobs is not None:
            one_of("old_logprobs", self.old_logprobs, get_args(OldLogprobs))
        counts = (
            "prompts_per_step",
            "steps_per_rollout",
            "passes",
            "max_new_tokens",
            "tf_batch_size",
            "token_budget",
            "reload_every",
            "eval_samples",
            "eval_every",
        )
        check_counts(**{name: getattr(self, name) for name in counts})
        check_batch_size("gen_batch_size", self.gen_batch_size)
        self._check_not_negative(
            "max_staleness", "resample", "kl_coef", "correction", "eval_prompts", "eval_temperature", "show_groups"
        )
        self._check_positive("temperature", "clip_low", "clip_high", "max_mismatch", "reward_timeout")
        self._check_group()
        self._check_ranges()
        self._check_tasks()
        self._check_servers()

    def _check_group(self) -> None:
        check_counts(group_size=self.group_size)
        if self.group_size == 1:
            raise OptionError(
                "group_size must be at least 2, got 1: an advantage is the difference to the other attempts at the "
                "same task, and one attempt alone has none"
            )

    def _check_ranges(self) -> None:
        if self.clip_low >= 1:
            raise OptionError(f"clip_low must be below 1, got {self.clip_low}")
        if self.lora_dropout:
            raise OptionError(
                "lora_dropout has no effect in GRPO, which scores responses without dropout so that ratios are exact; "
                "leave it out"
            )
        if (self.kl_in == "reward" or self.reference is not None) and not self.kl_coef:
            raise OptionError("kl_in and reference need kl_coef above 0: without it, no reference is used")
        if self.correction is not None and not self.scores_old:
            raise OptionError(
                "correction is for log-probabilities that are scored again; give old_logprobs='score', or leave it out"
            )
        if self.steps_per_rollout * self.passes - 1 > self.max_staleness:
            raise OptionError(
                f"the last of {self.steps_per_rollout * self.passes} steps on a rollout ({self.steps_per_rollout} "
                f"steps_per_rollout x {self.passes} passes) would be {self.steps_per_rollout * self.passes - 1} steps "
                f"behind the weights that drew it, more than max_staleness {self.max_staleness}; raise it, or take "
                "fewer steps"
            )

    def _check_tasks(self) -> None:
        if not self.rewards:
            raise OptionError("rewards is empty; name a reward, such as answer")
        if self.gym is None:
            return
        if self.dataset:
            raise OptionError("give dataset or gym, not both")
        if self.rewards != ("answer",) or self.judge_servers:
            raise OptionError("rewards have no effect on episodes, which are rewarded by the gym (gym.rewards)")
        if self.servers:
            raise OptionError("episodes are played by the model in this process; leave out servers")
        if self.gen_batch_size != GEN_BATCH_SIZE:
            raise OptionError("gen_batch_size has no effect on episodes; gym.lanes is how many are played at once")
        if self.eval_dataset is not None:
            raise OptionError("eval_dataset has no effect on episodes: held-out puzzles have other seeds")

    def _check_servers(self) -> None:
        if not self.servers:
            for name in ("server_model", "key_env", "reload"):
                if getattr(self, name) is not None:
                    raise OptionError(f"{name} needs servers")
            return
        if self.old_logprobs == "decode":
            raise OptionError(
                "old_logprobs must be 'score' with servers, whose log-probabilities differ from those of training; "
                "leave it out"
            )
        if self.temperature != 1 and self.correction != 0:
            raise OptionError(
                f"temperature must be 1 with servers, got {self.temperature}: a server does not say whether its "
                "log-probabilities are before or after the temperature; or give correction=0"
            )

    @property
    def scores_old(self) -> bool:
        """Whether old log-probabilities are scored again, instead of taken from decoding."""
        return self.old_logprobs == "score" or (self.old_logprobs is None and bool(self.servers))

    @property
    def correction_limit(self) -> float:
        """Upper limit of the weights of truncated importance sampling; 0 corrects nothing."""
        if not self.scores_old:
            return 0.0
        return CORRECTION if self.correction is None else self.correction

    @property
    def scale(self) -> Scale:
        """Divisor of advantages, with the default filled in."""
        if self.scale_rewards is not None:
            return self.scale_rewards
        return "none" if self.loss == "dr_grpo" else "group"

    @property
    def masks_truncated(self) -> bool:
        """Whether attempts that were cut off are not trained on."""
        return self.gym is None if self.mask_truncated is None else self.mask_truncated

    @property
    def groups_per_rollout(self) -> int:
        return self.prompts_per_step * self.steps_per_rollout

    def learning_rate_for(self, weights: int) -> float:
        """Return the learning rate of a model with so many weights, if none is given: 1e-6 for 7 billion, and more for
        smaller models by the square root of the ratio; ten times as much with LoRA.
        """
        if self.learning_rate is not None:
            return self.learning_rate
        rate = 1e-6 * math.sqrt(7e9 / max(weights, 1)) * (10 if self.lora_rank else 1)
        return float(f"{rate:.1e}")

    def to_dict(self) -> dict[str, Any]:
        """Return the options as JSON-like values. Addresses of servers are without the secrets they may hold."""
        from brim.llm.wire.address import parse_address

        def plain(urls: tuple[str, ...]) -> list[str]:
            return [parse_address(url, environ={}).name for url in urls]

        named = {"servers": plain(self.servers), "judge_servers": plain(self.judge_servers), "key_env": None}
        return {**asdict(self), **named}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        return from_dict(cls, values)

    def resumed(self, **given: Any) -> Self:
        """Return the options of a resumed run: these, with those of `given` that may change.

        Raises:
            MismatchError: An option was given that would change the run.
        """
        if given.get("max_steps", self.max_steps) != self.max_steps and self.schedule != "constant":
            raise MismatchError(
                f"max_steps ({self.max_steps} -> {given['max_steps']}) cannot change when a run is resumed whose "
                f"learning rate follows a {self.schedule} schedule; leave it out, or start a new run"
            )
        return resumed(self, given, may_change=CHANGEABLE, paths=(*PATHS, "reference", "dataset", "eval_dataset"))
