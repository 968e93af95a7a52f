"""Rewards of tests, named as support.grpo_rewards:NAME."""

import hashlib


def ascii_share(prompt, response, example):
    """Share of the characters that are ASCII: an untrained model over bytes has about a half."""
    return sum(ord(character) < 128 for character in response) / len(response) if response else 0.0


def shuffled(prompt, response, example):
    """A number that has nothing to do with the quality of the response."""
    return hashlib.sha256(f"{prompt}|{response}".encode()).digest()[0] / 255


def same(prompt, response, example):
    return 1.0


def broken(prompt, response, example):
    raise ValueError("no reward today")


def sometimes_broken(prompt, response, example):
    if len(response) % 3 == 0:
        raise KeyError("lost")
    return ascii_share(prompt, response, example)


def in_parts(prompt, response, example):
    share = ascii_share(prompt, response, example)
    return {"ascii": share, "short": -0.01 * len(response)}
