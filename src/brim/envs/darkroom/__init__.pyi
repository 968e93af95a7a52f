from brim.envs.darkroom.histories import Histories as Histories
from brim.envs.darkroom.histories import HistoryConfig as HistoryConfig
from brim.envs.darkroom.histories import write_histories as write_histories
from brim.envs.darkroom.ppo import Ppo as Ppo
from brim.envs.darkroom.q_learning import QLearning as QLearning
from brim.envs.darkroom.room import Darkroom as Darkroom
from brim.envs.darkroom.room import DarkroomState as DarkroomState
from brim.envs.darkroom.room import lane_env as lane_env
