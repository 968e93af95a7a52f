"""Fixtures for the tests of generation: a real model server."""

from support.llama import smollm as smollm
