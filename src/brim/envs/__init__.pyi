from brim.envs import darkroom as darkroom
from brim.envs import puzzle as puzzle
