from brim.envs import darkroom as darkroom
from brim.envs import puzzle as puzzle
from brim.envs.episode import DIFFICULTIES as DIFFICULTIES
from brim.envs.episode import Ending as Ending
from brim.envs.episode import EpisodeStatus as EpisodeStatus
