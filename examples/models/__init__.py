"""Networks and full training steps that the examples and the tests share."""

from .convnet import ConvNet as ConvNet
from .mixer import Mixer as Mixer
from .training import TrainingProblem as TrainingProblem
from .training import TrainState as TrainState
from .training import convnet_problem as convnet_problem
from .training import mixer_problem as mixer_problem
from .training import training_problem as training_problem
from .training import transformer_problem as transformer_problem
from .transformer import Transformer as Transformer
