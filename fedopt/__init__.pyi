from fedopt.algorithms import Algorithm as Algorithm
from fedopt.api import Result as Result
from fedopt.api import compare as compare
from fedopt.api import load as load
from fedopt.api import run as run
from fedopt.api import sweep as sweep
from fedopt.config.compose import Composed as Composed
from fedopt.config.compose import compose as compose
from fedopt.config.compose import recorded as recorded
from fedopt.config.schedules import LocalWork as LocalWork
from fedopt.config.schedules import Schedule as Schedule
from fedopt.data.examples import cross_entropy as cross_entropy
from fedopt.data.world import World as World
from fedopt.errors import UserError as UserError
from fedopt.federation.client import Client as Client
from fedopt.federation.draws import Epochs as Epochs
from fedopt.federation.draws import Full as Full
from fedopt.federation.draws import Steps as Steps
from fedopt.federation.memory import Memory as Memory
from fedopt.federation.round import Federation as Federation
from fedopt.federation.round import Round as Round
from fedopt.metrics import Metric as Metric
from fedopt.problems.classes import Bilevel as Bilevel
from fedopt.problems.classes import Compositional as Compositional
from fedopt.problems.classes import Hierarchical as Hierarchical
from fedopt.problems.classes import KnownOuter as KnownOuter
from fedopt.problems.classes import Minimax as Minimax
from fedopt.problems.classes import Minimisation as Minimisation
from fedopt.problems.classes import Problem as Problem
from fedopt.problems.classes import TwoLevel as TwoLevel
from fedopt.problems.function import function as function
from fedopt.problems.supervised import Supervised as Supervised
from fedopt.running.assemble import Experiment as Experiment
from fedopt.running.assemble import assemble as assemble

PARENT: int
__version__: str
