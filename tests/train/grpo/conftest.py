import pytest


@pytest.fixture
def grpo_options(small, tmp_path):
    """Options of a short GRPO run in a directory of the test; keywords change them."""
    from brim.train.grpo.config import GrpoConfig

    def make(name="run", **changes):
        values = {
            "model": str(small / "model"),
            "dataset": "arithmetic",
            "output": str(tmp_path / name),
            "rewards": ("support.grpo_rewards:ascii_share",),
            "max_steps": 3,
            "group_size": 4,
            "prompts_per_step": 3,
            "max_new_tokens": 6,
            "learning_rate": 3e-3,
            "mask_truncated": False,
            "eval_prompts": 0,
            "tensorboard": False,
            "save_every": 2,
            "record_samples": True,
        }
        return GrpoConfig(**(values | changes))

    return make
