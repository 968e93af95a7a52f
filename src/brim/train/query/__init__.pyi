from brim.train.query.config import QueryMutatorConfig as QueryMutatorConfig
from brim.train.query.report import Evaluation as Evaluation
from brim.train.query.report import UpdateReport as UpdateReport
from brim.train.query.run import QueryHooks as QueryHooks
from brim.train.query.run import QueryMutatorResult as QueryMutatorResult
from brim.train.query.run import train_query_mutator as train_query_mutator
