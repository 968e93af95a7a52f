"""Small causal models of transformers with random weights, and one whose logits are a table."""

import torch
import transformers

TINY = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
ENDS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}


def tiny(kind="llama", *, vocab=300, positions=512, seed=0, **options):
    """A model of a kind: llama, qwen2, gpt2 (learned positions, no rotation), mistral (sliding window), ..."""
    torch_state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    shared = {"vocab_size": vocab, "max_position_embeddings": positions, **ENDS}
    try:
        if kind == "gpt2":
            shape = transformers.GPT2Config(n_embd=64, n_layer=2, n_head=4, **shared, **options)
        else:
            names = {"llama": "Llama", "qwen2": "Qwen2", "mistral": "Mistral", "gemma2": "Gemma2", "cohere": "Cohere"}
            config = getattr(transformers, f"{names[kind]}Config")
            shape = config(**TINY, num_key_value_heads=2, **shared, **options)
        return transformers.AutoModelForCausalLM.from_config(shape).eval()
    finally:
        torch.random.set_rng_state(torch_state)


def table_model(scores):
    """A Llama whose logits after any token are the row of that token in `scores`, [vocabulary, vocabulary].

    Attention and the feed-forward layer add nothing, embeddings are unit vectors, and the output layer is the table.
    """
    vocab = len(scores)
    hidden = -(-vocab // 8) * 8
    shape = transformers.LlamaConfig(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=4,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        rms_norm_eps=1e-12,
        **ENDS,
    )
    model = transformers.LlamaForCausalLM(shape).eval()
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(torch.eye(vocab, hidden))
        model.model.layers[0].self_attn.o_proj.weight.zero_()
        model.model.layers[0].mlp.down_proj.weight.zero_()
        model.lm_head.weight.zero_()
        model.lm_head.weight[:, :vocab] = scores.t() / hidden**0.5
    return model
