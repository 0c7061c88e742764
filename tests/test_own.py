"""Algorithms and problems of one's own: `fedopt new`, and mistakes in them, which are answered with the file and the line."""

import itertools

import pytest
from command import fedopt

from fedopt.new import TEMPLATES

COUNT = itertools.count()
RUN = ["budget.rounds=2", "hardware.threads=1"]
CHOSEN = {
    "my_sgd": ["algo=my_sgd", "problem=classification", "dataset=digits", "problem.widths=[4]", "algo.B=4"],
    "my_regression": ["algo=fedavg", "problem=my_regression", "algo.B=4"],
}
GRADIENT = 'return client.gradient(x, client.sample("xi"))'
F = "return weight @ (a @ x - b) ** 2"


def mistaken(example, right, wrong, monkeypatch, capsys, folder, *overrides):
    """The exit code and the last line of a run of an example in which one line is another, and that line's `file.py:number`."""
    name = f"{example}_{next(COUNT)}"
    text = (TEMPLATES / f"{example}.py").read_text()
    assert text.count(right) == 1
    changed = text.replace(right, wrong)
    (folder / f"{name}.py").write_text(changed)
    group = "algo" if example == "my_sgd" else "problem"
    node = (TEMPLATES / f"{example}.yaml").read_text().replace(f" {example}.", f" {name}.")
    (folder / "myconf" / group).mkdir(parents=True)
    (folder / "myconf" / group / f"{example}.yaml").write_text(node)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.chdir(folder)
    result = fedopt(monkeypatch, capsys, "--config-dir", "myconf", *CHOSEN[example], *RUN, *overrides)
    begin = text[: text.index(right)].count("\n") + 1
    return result, [f"{name}.py:{line}: " for line in range(begin, begin + wrong.count("\n") + 1)]


INDENT = "\n        "
MISTAKES = {
    "algorithm: no return of a client": ("my_sgd", GRADIENT, GRADIENT.removeprefix("return "), "None"),
    "algorithm: float of a client": ("my_sgd", GRADIENT, "return 0.5", "float"),
    "algorithm: no return of step": ("my_sgd", "return State(s.x - self.eta * g)", "State(s.x - self.eta * g)", "None"),
    "algorithm: wrong shape of step": ("my_sgd", "return State(s.x - self.eta * g)", "return State(s.x[:3])", "shape"),
    "algorithm: wrong type of step": ("my_sgd", "return State(s.x - self.eta * g)", "return State(s.x.double())", "float64"),
    "algorithm: float in the state": ("my_sgd", "return State(s.x - self.eta * g)", "return State(0.5)", "float"),
    "algorithm: no return of init": ("my_sgd", "return State(*problem.start())", "State(*problem.start())", "None"),
    "algorithm: no return of output": ("my_sgd", "return (s.x,)", "(s.x,)", "None"),
    "algorithm: output without a tuple": ("my_sgd", "return (s.x,)", "return s.x", "tuple"),
    "algorithm: in place on the state": ("my_sgd", "return State(s.x - self.eta * g)", "s.x.sub_(g); return State(s.x)", "writes over"),
    "algorithm: in place on the message": ("my_sgd", GRADIENT, "x -= 1" + INDENT + "    " + GRADIENT, "over"),
    "algorithm: if": ("my_sgd", GRADIENT, "g = client.gradient(x, client.sample('xi'))" + INDENT + "    return g if g.sum() > 0 else -g", "if"),
    "algorithm: item": ("my_sgd", GRADIENT, "return x * client.gradient(x, client.sample('xi')).sum().item()", "number"),
    "algorithm: randn": ("my_sgd", GRADIENT, "import torch" + INDENT + "    return torch.randn(len(x))", "random"),
    "algorithm: randn on the server": ("my_sgd", "return State(s.x - self.eta * g)", "return State(s.x - g.clone().normal_())", "torch"),
    "algorithm: numpy": ("my_sgd", GRADIENT, "import numpy as np" + INDENT + "    return np.sign(client.gradient(x, client.sample('xi')))", "numpy"),
    "algorithm: shapes": ("my_sgd", GRADIENT, "return client.gradient(x[:3], client.sample('xi'))", "shape"),
    "algorithm: types": ("my_sgd", GRADIENT, "return client.gradient(x.double(), client.sample('xi'))", "type"),
    "problem: no return of f": ("my_regression", F, F.removeprefix("return "), "None"),
    "problem: no return of sample": ("my_regression", "return self.a[index], self.b[index], weight", "self.a[index]", "None"),
    "problem: no return of start": ("my_regression", "return (torch.zeros_like(self.a[0]),)", "(torch.zeros_like(self.a[0]),)", "None"),
    "problem: start without a tuple": ("my_regression", "return (torch.zeros_like(self.a[0]),)", "return torch.zeros_like(self.a[0])", "tuple"),
    "problem: no return of evaluate": ("my_regression", 'return {"mse"', '{"mse"', "None"),
    "problem: evaluate of several numbers": ("my_regression", "float(torch.mean((self.a @ x - self.b) ** 2))", "(self.a @ x - self.b) ** 2", "one number"),
    "problem: wrong shape": ("my_regression", F, "return (a @ x - b) ** 2", "mean"),
    "problem: wrong shapes inside": ("my_regression", F, "return weight @ (a.T @ x - b) ** 2", "Error"),
    "problem: float": ("my_regression", F, "return float(weight @ (a @ x - b) ** 2)", "float"),
    "problem: wrong type": ("my_regression", F, "return (weight @ (a @ x - b) ** 2).double()", "float64"),
    "problem: wrong type of start": ("my_regression", "return (torch.zeros_like(self.a[0]),)", "return (torch.zeros(10).double(),)", "float64"),
    "problem: wrong type of data": ("my_regression", "self.world.tensor(a @ x", "torch.from_numpy(a @ x", "type"),
    "problem: in place": ("my_regression", F, "b -= a @ x" + INDENT + "return weight @ b**2", "over"),
    "problem: in place on x": ("my_regression", F, "x *= 2" + INDENT + F, "over"),
    "problem: if": ("my_regression", F, "e = a @ x - b" + INDENT + "return e.mean() if e.sum() > 0 else -e.mean()", "if"),
    "problem: item": ("my_regression", F, "return weight @ (a @ x - b) ** 2 * weight.sum().item()", "number"),
    "problem: randn": ("my_regression", F, "return weight @ (a @ x - b + torch.randn(len(b))) ** 2", "random"),
    "problem: numpy": ("my_regression", F, "import numpy" + INDENT + "return torch.tensor(numpy.mean((a @ x - b).numpy() ** 2))", "numpy"),
    "problem: no splits": ("my_regression", "self.splits = ", "splits = ", "self.splits"),
    "problem: mistyped name": ("my_regression", F, "return wieght @ (a @ x - b) ** 2", "wieght"),
}  # fmt: skip


@pytest.mark.parametrize("engine", ["vectorised", "one_by_one"])
@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes(mistake, engine, monkeypatch, capsys, tmp_path):
    *change, said = MISTAKES[mistake]
    result, places = mistaken(*change, monkeypatch, capsys, tmp_path, f"hardware.engine={engine}")
    line = result.err.splitlines()[-1] if result.err else ""
    print(mistake, engine, result.code, "|", line, "|", places)
