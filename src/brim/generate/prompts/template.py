"""The prompt that asks for reasoning in <think> tags and for the final answer in <answer> tags.

A prompt ends with "<think>", so the response begins inside the reasoning and does not repeat that tag.
"""

OPEN_ANSWER, CLOSE_ANSWER = "<answer>", "</answer>"
ANSWER_STOP = (CLOSE_ANSWER,)
INSTRUCTIONS = (
    "Solve the problem below. First work through it step by step between <think> and </think>. "
    "Then write the final answer, and nothing else, between <answer> and </answer>."
)


def think_prompt(problem: str) -> str:
    """Return the prompt for a problem."""
    return f"{INSTRUCTIONS}\nQuestion: {problem}\nResponse: <think>"


def with_solution(prompt: str, reasoning: str, answer: str) -> str:
    """Return a prompt of `think_prompt` followed by a worked solution."""
    return f"{prompt} {reasoning} </think> {OPEN_ANSWER} {answer} {CLOSE_ANSWER}"


def in_tags(response: str) -> str | None:
    """Return the content of the only <answer> block, or None if there is none or more than one.

    Its closing tag may be missing: generation may have stopped before it.
    """
    if response.count(OPEN_ANSWER) != 1 or response.count(CLOSE_ANSWER) > 1:
        return None
    before, _, rest = response.partition(OPEN_ANSWER)
    if CLOSE_ANSWER in before:
        return None
    return rest.partition(CLOSE_ANSWER)[0].strip()
