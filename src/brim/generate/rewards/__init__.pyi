from brim.generate.rewards.function import reward as reward
from brim.generate.rewards.judge import JudgeOptions as JudgeOptions
from brim.generate.rewards.opening import open_rewards as open_rewards
from brim.generate.rewards.outcome import Rewarded as Rewarded
from brim.generate.rewards.outcome import RewardFailure as RewardFailure
from brim.generate.rewards.scoring import Rewards as Rewards
from brim.generate.rewards.scoring import Scoring as Scoring
