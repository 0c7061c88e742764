from fedopt.networks.dense import Dense as Dense
from fedopt.networks.dense import Tuning as Tuning
from fedopt.networks.dropout import GOLDEN as GOLDEN
from fedopt.networks.dropout import mixed as mixed
from fedopt.networks.flat import FlatModel as FlatModel
from fedopt.networks.flat import Normalised as Normalised
from fedopt.networks.module import FlatModule as FlatModule
from fedopt.networks.torchvision_import import torchvision as torchvision
