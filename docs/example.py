# %% [markdown]
# # fedopt from Python
#
# Train a network with a federated bilevel method, stop early, go on, read the run back from its folder, and test the network.
# The images are digits of 8 x 8 pixels that come with fedopt, so that nothing is downloaded and all of it takes seconds.

# %%
import torch

import fedopt
from fedopt.data.datasets import Digits

words = (
    "algo=fedmsa problem=hyper_representation dataset=digits problem.widths=[32] partitioner.clients=5 "
    "participation.cohort=null budget.rounds=20 eval.every=2 eval.metric=test_accuracy eval.target=null keep=best"
)

# %% [markdown]
# A run is the one that the command `fedopt WORDS` makes, in the same folder with the same files. Each evaluation comes to `on_eval`
# as the row of metrics.csv; where it returns true, the run stops with a checkpoint, as after Ctrl-C.


# %%
def good_enough(row):
    return row["test_accuracy"] >= 50


run = fedopt.run(words, on_eval=good_enough, quiet=True)
print(run.status, "after", run.metrics["round"].iloc[-1], "rounds:", run.final)

# %% [markdown]
# `resume=true` goes on to the end of the budget, with the numbers of a run that was never stopped.

# %%
run = fedopt.run(f"{words} resume=true", output_dir=run.folder, quiet=True)
print(run.status, "after", run.metrics["round"].iloc[-1], "rounds; best:", run.best)

# %% [markdown]
# Any run can be read back from its folder, in another process too. `keep=best` keeps the variables at the best evaluation by
# `eval.metric` besides the last ones. Their names are those of the problem: here x is the hidden layer and y the output layer.

# %%
old = fedopt.load(run.folder, which="best")
print({name: list(value.shape) for name, value in old.variables.items()}, old.config["budget"])

# %% [markdown]
# The network is a `torch.nn.Module`. It takes images as the data set has them, not normalised, and has the normalisation inside.
# Of these data every fifth image is for testing.

# %%
digits = Digits().load()
images, labels = torch.from_numpy(digits.x_test), torch.from_numpy(digits.y_test)
network = old.model()
with torch.no_grad():
    accuracy = 100 * (network(images).argmax(1) == labels).double().mean().item()
print(f"test accuracy {accuracy:.2f} %, in metrics.csv {old.best['test_accuracy']:.2f} %")

# %% [markdown]
# Runs, and folders that hold some, are compared as by `fedopt compare`.

# %%
other = fedopt.run(f"{words} algo.K=1", quiet=True)
comparison = fedopt.compare([run, other])
comparison.draw("compare.png")
print(comparison.table)
