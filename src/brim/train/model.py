"""Models: the built-in one, those of transformers on this machine, LoRA on top; and what is refused before the first
step.
"""

import json
import warnings
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import numpy as np

from brim.core.arrays import round_up
from brim.core.errors import LengthError, MismatchError, MissingExtraError, OptionError
from brim.core.extras import need
from brim.core.fingerprint import fingerprint
from brim.core.rng import new_seed
from brim.data.tokenizer.arc import ArcTokenizer
from brim.data.tokenizer.base import ByteTokenizer, Tokenizer, load_tokenizer
from brim.data.tokenizer.hf import HfTokenizer
from brim.plan.config import PadPolicy
from brim.plan.plan import BatchPlan
from brim.train.config import ModelConfig

if TYPE_CHECKING:
    import torch
    from torch import nn
else:
    torch = need("torch", extra="train", user="brim.train")

USER = "brim.train.model"
TOKENIZER = "brim_tokenizer.json"
"""The file of a model directory that names the tokenizer, where it is not one of transformers."""


@contextmanager
def quiet() -> Generator[None, None, None]:
    """Switch off the progress bars of transformers inside: brim has its own."""
    logging = need("transformers.utils.logging", extra="train", user=USER)
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def check_model(name: str) -> None:
    """Refuse a model that cannot be loaded, before anything heavy is loaded or written.

    Raises:
        OptionError: There is no such model on this machine, or loading it would run code or unpickle a file.
    """
    path = Path(name)
    if name == "tiny":
        return
    if (path / "config.json").is_file():
        try:
            _check_code(name)
        except (OSError, ValueError) as error:
            raise _cannot_load(name, error) from None
        return _check_weights(path)
    if (path / "adapter_config.json").is_file():
        raise OptionError(
            f"{name} holds a LoRA adapter, not a model; merge it into its base first (peft: merge_and_unload), or "
            "resume its run"
        )
    if path.is_dir():
        inside = sorted(child for child in path.iterdir() if (child / "config.json").is_file())
        raise OptionError(
            f"{name} is not a model{f'; did you mean {inside[-1]}?' if inside else ' (it has no config.json)'}"
        )
    if path.exists():
        raise OptionError(f"the model {name} is a file; give a directory with a config.json, or tiny")
    try:
        _check_code(name)
    except (OSError, ValueError):
        raise OptionError(
            f"the model {name} is neither a directory nor in the local Hugging Face cache; give a directory with a "
            "config.json, fetch it first (hf download), or use the built-in one: tiny"
        ) from None


def _check_code(name: str) -> None:
    """Read the model's config.

    Transformers' own classes are enough for it, or it is refused: code of a model is never run.
    """
    transformers = need("transformers", extra="train", user=USER)
    try:
        transformers.AutoConfig.from_pretrained(name, local_files_only=True, trust_remote_code=False)
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        raise OptionError(
            f"the model {name} needs Python code of its own (auto_map in its config.json), which brim does not run; "
            "give a model of a type that transformers knows, or convert it to one first"
        ) from None


def _check_weights(path: Path) -> None:
    """Weights are read from safetensors only: every other format is a pickle, which runs code when it is opened."""
    if any(path.glob("*.safetensors")):
        return
    if pickled := sorted([*path.glob("*.bin"), *path.glob("*.pt"), *path.glob("*.pth")]):
        raise OptionError(
            f"the weights of {path} are pickled ({pickled[0].name}), and brim opens no pickle; convert them to "
            "safetensors first (transformers: save_pretrained of a model you trust)"
        )


def find_tokenizer(config: ModelConfig, plan: BatchPlan | None) -> Tokenizer:
    """Load the tokenizer that was asked for; else the model's own; else the plan's; else bytes."""
    if config.tokenizer is not None:
        return load_tokenizer(config.tokenizer)
    directory = Path(config.model)
    if (directory / TOKENIZER).is_file():
        return load_tokenizer(json.loads((directory / TOKENIZER).read_bytes())["tokenizer"])
    if directory.is_dir() and any(
        (directory / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")
    ):
        return load_tokenizer(directory)
    recorded = plan.table.source.get("tokenizer") if plan is not None else None
    if config.model != "tiny" and not directory.is_dir() and recorded is None:
        return load_tokenizer(config.model)
    return load_tokenizer(recorded or "byte")


def save_tokenizer(tokenizer: Tokenizer, directory: Path) -> None:
    """Save a tokenizer beside its model, where `load_tokenizer` and transformers find it."""
    if isinstance(tokenizer, HfTokenizer):
        tokenizer.save(directory)
    elif isinstance(tokenizer, ByteTokenizer | ArcTokenizer):
        (directory / TOKENIZER).write_text(json.dumps({"tokenizer": tokenizer.name}) + "\n")


def save_model(directory: Path, model: Any, weights: "dict[str, torch.Tensor]", tokenizer: Tokenizer) -> None:
    """Write a model and its tokenizer as transformers reads them. `weights` are the model's, whole and by name."""
    directory.mkdir(parents=True, exist_ok=True)
    with quiet():
        model.save_pretrained(directory, state_dict=weights)
    save_tokenizer(tokenizer, directory)


def import_ahead(name: str) -> Thread:
    """Import the classes of a model in a thread, and return it; join it before the model is loaded.

    Importing transformers takes seconds, which are free while other processes tokenise the data. Joining matters: two
    threads that import parts of one package at the same time can meet modules that are half imported. An import that
    fails here fails again, and is reported, where the model is loaded.
    """

    def work() -> None:
        with suppress(ImportError, MissingExtraError):
            transformers = need("transformers", extra="train", user=USER)
            getattr(transformers, "LlamaForCausalLM" if name == "tiny" else "AutoModelForCausalLM")

    thread = Thread(target=work, name="brim-import")
    thread.start()
    return thread


def load_model(config: ModelConfig, tokenizer: Tokenizer) -> "nn.Module":
    """Load a model in float32, on the CPU, with LoRA if asked for.

    Raises:
        OptionError: There is no such model here, or the tokenizer has tokens that it does not know.
    """
    transformers = need("transformers", extra="train", user=USER)
    with torch.random.fork_rng(devices=[]), quiet():
        torch.manual_seed(new_seed(seed=config.seed, purpose="init"))
        model = _tiny(transformers, tokenizer) if config.model == "tiny" else _load(transformers, config.model)
        return _fitted(model, config, tokenizer)


def take_model(model: Any, config: ModelConfig, tokenizer: Tokenizer) -> "nn.Module":
    """Make a model that is in memory ready to be trained, in place, with LoRA if asked for.

    Raises:
        OptionError: It is not a causal model of transformers in float32, or the tokenizer has tokens that it does not
            know.
    """
    if not all(hasattr(model, name) for name in ("get_input_embeddings", "save_pretrained", "config")):
        raise OptionError(
            f"model must be a causal language model of transformers, got {type(model).__name__}; for other modules "
            "write an objective (see brim.train.run.Run)"
        )
    other = next(
        (f"{name} is {weight.dtype}" for name, weight in model.named_parameters() if weight.dtype != torch.float32),
        None,
    )
    if other is not None:
        raise OptionError(
            f"the weights of the model must be in float32, but {other}; call model.float() first, and use bf16=True"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(new_seed(seed=config.seed, purpose="init"))
        return _fitted(model, config, tokenizer)


def _fitted(model: Any, config: ModelConfig, tokenizer: Tokenizer) -> Any:
    """Check that a model knows the tokenizer's tokens, and add LoRA."""
    rows = model.get_input_embeddings().num_embeddings
    if tokenizer.vocab_size > rows:
        raise OptionError(
            f"the tokenizer {tokenizer.name} has {tokenizer.vocab_size} tokens, the model {config.model} knows "
            f"{rows}; use the model's own tokenizer, or resize the model's embeddings first"
        )
    model.config.use_cache = False
    return _with_lora(model, config) if config.lora_rank else model


def _tiny(transformers: Any, tokenizer: Tokenizer) -> Any:
    """Make a Llama of under a million weights, embeddings not counted."""
    shape = transformers.LlamaConfig(
        vocab_size=round_up(tokenizer.vocab_size, 64),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_id,
        bos_token_id=tokenizer.bos_id,
        eos_token_id=tokenizer.eos_id,
    )
    return transformers.LlamaForCausalLM(shape)


def _load(transformers: Any, name: str) -> Any:
    try:
        return transformers.AutoModelForCausalLM.from_pretrained(
            name,
            dtype=torch.float32,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
        )
    except (OSError, ValueError, RuntimeError, need("safetensors", extra="train", user=USER).SafetensorError) as error:
        raise _cannot_load(name, error) from None


def _cannot_load(name: str, error: Exception) -> OptionError:
    return OptionError(f"the model {name} cannot be loaded: {str(error).splitlines()[0]}")


def _with_lora(model: Any, config: ModelConfig) -> Any:
    peft = need("peft", extra="train", user=USER)
    targets = list(config.lora_targets) if config.lora_targets is not None else "all-linear"
    options = peft.LoraConfig(
        task_type="CAUSAL_LM",
        r=config.lora_rank,
        lora_alpha=config.lora_alpha or 2 * config.lora_rank,
        lora_dropout=config.lora_dropout,
        target_modules=targets,
    )
    with warnings.catch_warnings():
        # peft reads an attribute that transformers 5.23 has renamed; users of brim cannot do anything about it.
        warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated", category=FutureWarning)
        try:
            return peft.get_peft_model(model, options)
        except ValueError as error:
            raise OptionError(f"LoRA does not fit this model: {str(error).splitlines()[0]}") from None


def load_adapter(model: Any, checkpoint: Path) -> Any:
    """Load the LoRA weights of a checkpoint into a model that has LoRA layers."""
    load_file = need("safetensors.torch", extra="train", user=USER).load_file
    need("peft", extra="train", user=USER).set_peft_model_state_dict(
        model, load_file(checkpoint / "model" / "adapter_model.safetensors")
    )
    return model


def base_fingerprint(model: Any) -> str:
    """Fingerprint the frozen weights by about a thousand numbers of each, so that another base model is noticed at
    once.
    """
    frozen = [(name, weight.detach()) for name, weight in model.named_parameters() if not weight.requires_grad]
    picked = {
        name: weight.reshape(-1)[:: max(1, weight.numel() // 1024)].float().cpu().numpy().view(np.int32)
        for name, weight in frozen
    }
    return fingerprint(**picked)


def check_lengths(plan: BatchPlan, model: Any, name: str) -> None:
    """Check that the model has a position for every token of a row.

    Raises:
        LengthError: A sequence is longer than the model has positions, or a row is padded to more.
    """
    most = getattr(model.config, "max_position_embeddings", None)
    longest = plan.longest
    if most is None:
        return
    if longest > most:
        units = plan.units
        unit = int(units.length.argmax())
        id = plan.table.ids[int(units.samples(np.array([unit], np.int32))[0])]
        raise LengthError(
            f"sample {id!r} has {longest} tokens, the model {name} has {most} positions; plan with --overflow-max "
            f"{most} and --overflow truncate, split or skip"
        )
    if (widest := _widest(plan, longest)) > most:
        raise LengthError(
            f"rows are padded to {widest} tokens, the model {name} has {most} positions; lower the bucket edges or "
            "--pad-to-multiple"
        )


def _widest(plan: BatchPlan, longest: int) -> int:
    """Return how wide a row of one sample can be; packed rows are trained without padding."""
    config = plan.config
    if config.packing is not None:
        return longest
    if config.pad_policy is PadPolicy.PAD_TO_BUCKET and plan.buckets is not None:
        longest = min(width for width in plan.buckets.widths if width >= longest)
    return round_up(longest, config.pad_to_multiple)


def check_vocabulary(tokens: Any, model: Any, name: str) -> None:
    """Check that the model knows every token of the data.

    Raises:
        MismatchError: The data holds a token that the model does not know.
    """
    rows, largest = model.get_input_embeddings().num_embeddings, int(tokens.max(initial=0))
    if largest >= rows:
        raise MismatchError(
            f"the data holds the token {largest}, the model {name} knows {rows}; it was tokenized for another model"
        )
