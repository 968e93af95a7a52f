"""Group relative policy optimization (Shao et al. 2024): from rollouts to weights with one planner.

config       GrpoConfig
attempt      the result of a rollout, and the interface of everything that makes rollouts
prompts      rollouts: responses to prompts, drawn here or by a server, with rewards
episodes     rollouts: episodes on a puzzle server, as one sequence of moves and answers
advantages   from rewards to advantages
experience   a rollout as columns, and the microbatches of its steps
objective    the loss of a microbatch
run          the run: rollouts, steps, evaluations, checkpoints
page/        the run as an HTML page
"""

from brim.core.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
