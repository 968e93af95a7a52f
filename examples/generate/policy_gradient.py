"""A policy gradient in a few lines: generate, reward, score with gradients, step.

    python examples/generate/policy_gradient.py

The model is tiny and starts from random weights. It is rewarded for digits among the bytes it writes, and the share of
digits rises within a few steps. Needs brim[generate].
"""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from brim import GenerationConfig, SequenceProcessor, load_tokenizer

PROMPTS = ["2 + 2 =", "5 * 3 =", "10 - 4 =", "7 + 8 ="]
G = 8
STEPS = 8


def reward_of(text: str) -> float:
    """The share of digits in a response."""
    return sum(char.isdigit() for char in text) / max(len(text), 1)


def main() -> None:
    torch.set_num_threads(1)  # more threads only wait for each other with a model of this size
    torch.manual_seed(0)
    tokenizer = load_tokenizer("byte")
    shape = LlamaConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_id,
    )
    model = LlamaForCausalLM(shape)
    processor = SequenceProcessor(model, tokenizer, GenerationConfig(max_new_tokens=10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(STEPS):
        sequences = processor.generate_batched(PROMPTS, G=G, seed=step)
        rewards = torch.tensor([[reward_of(text) for text in row] for row in sequences.responses_text])
        # Each response is compared with the others to its prompt.
        advantages = (rewards - rewards.mean(dim=1, keepdim=True)).flatten()
        optimizer.zero_grad()
        for part in processor.microbatches(sequences):
            columns = zip(part.responses, part.split(part.logprobs), strict=True)
            torch.stack([-advantages[number] * column.sum() for number, column in columns]).sum().backward()
        optimizer.step()
        entropy = sequences.rollouts.entropies.mean()
        print(f"step {step:2}: share of digits {rewards.mean():.2f}, entropy {entropy:.2f} nats")
    print(f"attention slots that held a token, in the last step: {processor.stats.fill}")


if __name__ == "__main__":
    main()
