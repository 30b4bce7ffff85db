"""The eight networks of Coop's experiment, as full training steps.

`NETWORKS[name](scale)` builds a `TrainingStep`, at the paper's scale for planning or at
a reduced one that runs on a CPU. U-Net, Swin-T and GPT-3 are written in `flax.nnx`, the
others in `flax.linen`; the steps are pure functions over pytrees either way.
"""

from collections.abc import Callable

from paper.networks import (
    bert_large,
    bilstm,
    gpt3,
    inception_v3,
    resnet50,
    spos,
    swin,
    unet,
)
from paper.networks.training_step import DONATED as DONATED
from paper.networks.training_step import Scale as Scale
from paper.networks.training_step import TrainingStep as TrainingStep
from paper.networks.training_step import TrainState as TrainState

# In the paper's order.
NETWORKS: dict[str, Callable[[Scale], TrainingStep]] = {
    "bilstm": bilstm.training_step,
    "spos": spos.training_step,
    "resnet50": resnet50.training_step,
    "inception_v3": inception_v3.training_step,
    "unet": unet.training_step,
    "swin": swin.training_step,
    "bert_large": bert_large.training_step,
    "gpt3": gpt3.training_step,
}
