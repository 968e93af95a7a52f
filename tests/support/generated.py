"""Made-up outputs of `brim generate`, for tests of its page.

They look like samples of a small model on arithmetic: prompts differ in difficulty, wrong responses are longer and less
certain, the entropy falls along a response, and tokens were drawn at a temperature below 1.
"""

import json

import numpy as np

HOSTILE = {
    "script": "</script><script>window.hit = 1; alert(1)</script>",
    "image": '<img src=x onerror="window.hit = 1">',
    "link": '<a href="javascript:window.hit=1">javascript:window.hit=1</a> <style>*{display:none}</style>',
    "template": "${verdict} $title {{7*7}} %s {0}",
    "bidi": "abc \u202e fed \u2066 xyz \u200b",
    "ansi": "\x1b[31mred\x1b[0m \x07\x08",
    "nul": "a\x00b\u2028c\ufeff",
    "surrogate": "lone \ud800 and \udfff",
    "long": "x" * 100_000,
    "lines": "\n".join(f"line {i}" for i in range(400)),
    "arabic": "مرحبا بالعالم، 2 + 2 = 4",
    "emoji": "done 🎉 👩‍👩‍👧 ✅",
    "entities": "&lt;b&gt; &amp; <!-- --> ]]> \" ' `",
    "blank": " \n ",
    "empty": "",
}
"""Responses that a page must show and never obey."""

TEMPLATE = (
    "A conversation between User and Assistant. The user asks a question, and the Assistant solves it. The Assistant "
    "first thinks about the reasoning process and then gives the answer.\nUser: {} Assistant: <think>"
)
THINKING = "Let me work this out. I start with {}, and write it as a sum. Then I check it. Wait, that is not it. "


def create_output(
    prompts=64, samples=8, *, scored=True, logprobs=False, limit=200, temperature=0.8, chat=False, seed=0
):
    """The lines of an output as dictionaries, a function of the arguments."""
    random = np.random.default_rng(seed)
    return [
        line
        for number in range(prompts)
        for line in _group(random, number, samples, scored, logprobs, limit, temperature, chat)
    ]


def _group(random, number, samples, scored, logprobs, limit, temperature, chat):
    a, b = random.integers(2, 10 ** int(random.integers(1, 5)), 2).tolist()
    skill = random.beta(0.5, 0.7)
    prompt = TEMPLATE.format(f"What is {a} + {b}?")
    if chat:
        prompt = [{"role": "system", "content": "Answer briefly."}, {"role": "user", "content": f"What is {a} + {b}?"}]
    for sample in range(samples):
        is_right = random.random() < skill
        tokens = int(random.lognormal(4.0 if is_right else 4.5, 0.55)) + 3
        reason = "length" if tokens >= limit else "stop" if random.random() < 0.85 else "eos"
        tokens = min(tokens, limit)
        solved = is_right and reason != "length"
        answer = str(a + b if solved else a + b + int(random.integers(1, 99)))
        words = (THINKING.format(f"{a} + {b}") * (tokens // 20 + 1))[: tokens * 4]
        end = "" if reason == "length" else f"</think>\n<answer>{answer}</answer>"
        line = {"id": f"{number:016x}", "sample": sample, "prompt": prompt, "response": words + end}
        along = np.arange(tokens)
        entropies = random.gamma(1.2, 0.25 + 0.9 * np.exp(-along / 40) + (0 if is_right else 0.25))
        own = -random.exponential(entropies)
        drawn = np.minimum(own + (1 - temperature) * random.gamma(1.0, 1.2, tokens) * (own < -0.05), 0)
        line |= {"finish_reason": reason, "tokens": tokens, "logprob": float(own.sum())}
        line |= {"entropy": float(entropies.mean())}
        if scored:
            line |= {"answer": str(a + b), "score": float(solved)}
        if logprobs:
            line |= {"prompt_ids": [1, 2, 3], "token_ids": random.integers(0, 30_000, tokens).tolist()}
            columns = {"logprobs": own, "sampling_logprobs": drawn, "entropies": entropies}
            line |= {name: column.round(4).tolist() for name, column in columns.items()}
        yield line


def create_hostile(logprobs=False):
    """An output in which hostile texts are ids, prompts, roles, responses and answers."""
    for number, (name, text) in enumerate(HOSTILE.items()):
        prompt = [{"role": text[:99], "content": text}] if number % 2 else text
        shared = {"id": name + text[:200], "prompt": prompt, "answer": text, "tokens": 7, "logprob": -3.5}
        for sample, response in enumerate([text, *list(HOSTILE.values())[:3]]):
            line = {**shared, "sample": sample, "response": response, "score": float(sample == 1)}
            line |= {"finish_reason": ("eos", "stop", "length")[sample % 3], "entropy": 0.4}
            yield line | ({"entropies": [0.4] * 7, "logprobs": [-0.5] * 7} if logprobs else {})


def write_output(path, lines):
    """Write lines as JSON; lone surrogates become escapes."""
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path
