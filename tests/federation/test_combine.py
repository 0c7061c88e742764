"""What the server makes of the clients' answers in place of their mean, and second derivatives that an algorithm forswears."""

import numpy as np
import pytest
import torch

from fedopt.errors import UserError
from fedopt.federation.engines import OneByOne, Vectorised
from fedopt.federation.round import Federation
from fedopt.testing.harness import small


def answers(client, x):
    return client.index * 1.0 + x, (client.index * x,)


@pytest.mark.parametrize("engine", [OneByOne(), Vectorised(), Vectorised(2)])
def test_answers_come_in_the_order_of_the_cohort(engine):
    e = small("fedavg", "quadratic_minimisation")
    fed, x = Federation(e.problem, engine, 0), e.problem.start()[0]
    S, given = np.array([1, 4, 5]), []

    def largest(tree, weights):
        given.append(weights.tolist())
        return tuple(leaf[-1] for leaf in (tree[0], *tree[1]))

    first, second = fed.at(0).exchange(answers, x, S, combine=largest)
    assert torch.equal(first, 5 + x)
    assert torch.equal(second, 5 * x)
    np.testing.assert_allclose(given[0], e.problem.weights[S] / e.problem.weights[S].sum())
    assert fed.ledger.comm_rounds == 1

    def mean(tree, weights):
        return tuple(torch.einsum("i,i...->...", weights, leaf) for leaf in (tree[0], *tree[1]))

    torch.testing.assert_close(
        fed.at(0).exchange(answers, x, S, combine=mean)[0], fed.at(0).exchange(answers, x, S)[0], rtol=1e-14, atol=1e-14
    )


def test_the_server_makes_what_it_wants_of_the_answers():
    """A dict, a whole number and None of answers that are a tensor and a tuple, real numbers in the type of the run."""
    e = small("fedavg", "quadratic_minimisation", "hardware.dtype=float32")
    fed, x = Federation(e.problem, OneByOne(), 0), e.problem.start()[0] + 1

    def spread(tree, weights):
        return {"spread": tree[0].std(0), "largest": tree[0].argmax(), "others": None}

    made = fed.at(0).exchange(answers, x, np.array([0, 3]), combine=spread)
    np.testing.assert_allclose(made["spread"], np.full(len(x), np.std([1, 4], ddof=1)), rtol=1e-6)
    assert made["spread"].dtype == torch.float32
    assert (int(made["largest"]), made["others"]) == (len(x), None)


def test_second_derivatives_are_refused():
    e = small("fedmsa", "quadratic_bilevel")
    fed = Federation(e.problem, OneByOne(), 0, first_order=True)
    with pytest.raises(UserError, match="first_order = True"):
        e.algorithm.step(e.algorithm.init(e.problem), e.problem, fed.at(0))
