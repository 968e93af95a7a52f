from brim.train.online.config import OnlineConfig as OnlineConfig
from brim.train.online.policy import ModelPolicy as ModelPolicy
from brim.train.online.run import OnlineHooks as OnlineHooks
from brim.train.online.run import OnlineResult as OnlineResult
from brim.train.online.run import train_online as train_online
