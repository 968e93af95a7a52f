from brim.train.ppo.config import PpoConfig as PpoConfig
from brim.train.ppo.config import PpoRunConfig as PpoRunConfig
from brim.train.ppo.experience import Experience as Experience
from brim.train.ppo.policy import ActorCritic as ActorCritic
from brim.train.ppo.policy import RolloutPolicy as RolloutPolicy
from brim.train.ppo.run import PpoRun as PpoRun
