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

    first, (second,) = fed.at(0).exchange(answers, x, S, combine=largest)
    assert torch.equal(first, 5 + x)
    assert torch.equal(second, 5 * x)
    np.testing.assert_allclose(given[0], e.problem.weights[S] / e.problem.weights[S].sum())
    assert fed.ledger.comm_rounds == 1

    def mean(tree, weights):
        return tuple(torch.einsum("i,i...->...", weights, leaf) for leaf in (tree[0], *tree[1]))

    torch.testing.assert_close(
        fed.at(0).exchange(answers, x, S, combine=mean)[0], fed.at(0).exchange(answers, x, S)[0], rtol=1e-14, atol=1e-14
    )


def test_second_derivatives_are_refused():
    e = small("fedmsa", "quadratic_bilevel")
    fed = Federation(e.problem, OneByOne(), 0, first_order=True)
    with pytest.raises(UserError, match="first_order = True"):
        e.algorithm.step(e.algorithm.init(e.problem), e.problem, fed.at(0))
