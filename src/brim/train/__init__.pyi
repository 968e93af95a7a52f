from brim.train import distill as distill
from brim.train import online as online
from brim.train.config import SftConfig as SftConfig
from brim.train.report import SftResult as SftResult
from brim.train.report import StepReport as StepReport
from brim.train.sft import find_checkpoint as find_checkpoint
from brim.train.sft import train_sft as train_sft
