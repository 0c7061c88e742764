"""MA-SOBA, FSLA, AmIGO, SABA and SRBA against hand examples, NumPy derivations and closed forms."""

import numpy as np
import pytest
import torch
from support.one_machine import Written, by_hand, on_quadratic

from fedopt.algorithms.warm_started import SABA, SRBA, AlternatingSOBA, AmIGO, saga_
from fedopt.config.schedules import Constant, InversePower
from fedopt.errors import UserError
from fedopt.federation.draws import Steps
from fedopt.testing.harness import config, steps

STEP = Constant(0.1)
ETA_X, ETA_Y, ETA_V = 0.1, 0.4, 0.2
ETAS = [f"algo.eta_x={ETA_X}", f"algo.eta_y={ETA_Y}", f"algo.eta_v={ETA_V}"]
CODE = "algo.order=code"
batches = pytest.mark.parametrize("B", ["null", "3"])


def same(z, written, rtol=1e-10):
    for computed, derived in zip(z, written, strict=True):
        np.testing.assert_allclose(computed.numpy(), derived, rtol=rtol, atol=1e-12)


def steps_of(B):
    return Steps(1, None if B == "null" else int(B))


# Hand examples


@pytest.mark.parametrize(
    "algorithm", [SABA(STEP, STEP, STEP, None), SRBA(STEP, STEP, STEP, None, 1), SRBA(STEP, STEP, STEP, 1, 7)]
)
def test_two_simultaneous_steps_by_hand(algorithm):
    same(by_hand(algorithm, 1).z, [[0.9], [0.2], [-0.1]])
    same(by_hand(algorithm, 2).z, [[0.83], [0.34], [-0.16]])


@pytest.mark.parametrize(
    "algorithm",
    [
        AlternatingSOBA(STEP, STEP, STEP, None, Constant(0.3), False, "code"),
        AlternatingSOBA(STEP, STEP, STEP, None, Constant(0.3), True, "code"),
        AmIGO(STEP, STEP, STEP, None, 1),
    ],
)
def test_one_alternating_step_by_hand(algorithm):
    """y = 0.2, then v = 0 - 0.1 (0 - (0.2 - 1)), then x = 1 - 0.1 (1 + 2 v)."""
    same(by_hand(algorithm, 1).z, [[0.916], [0.2], [-0.08]])


# Written out in NumPy, two clients


# Limits


def test_without_momentum_both_are_alternating_soba():
    ends = [steps(on_quadratic(algo, CODE, *ETAS, "algo.rho=1", "algo.B=4"), 4)[-1] for algo in ("ma_soba", "fsla")]
    same(ends[0].z, ends[1].z, rtol=0)
    assert not torch.equal(ends[0].d, steps(on_quadratic("ma_soba", CODE, *ETAS, "algo.rho=0.5", "algo.B=4"), 4)[-1].d)


@pytest.mark.parametrize("rho", [0, 0.3])
def test_with_full_batches_fsla_has_no_momentum(rho):
    """d = Dx exactly, whatever rho is; MA-SOBA's moving average lags behind."""
    exact = steps(on_quadratic("fsla", *ETAS, "algo.rho=1", "algo.B=null"), 6)[-1]
    same(steps(on_quadratic("fsla", *ETAS, f"algo.rho={rho}", "algo.B=null"), 6)[-1].z, exact.z)
    lagging = steps(on_quadratic("ma_soba", CODE, *ETAS, f"algo.rho={rho}", "algo.B=null"), 6)[-1]
    assert (lagging.z[0] - exact.z[0]).abs().max() > 1e-3


def test_amigo_with_one_step_is_alternating_soba_and_with_many_descends_along_the_hypergradient():
    one = steps(on_quadratic("amigo", *ETAS, "algo.n=1", "algo.B=null"), 4)[-1]
    same(one.z, steps(on_quadratic("ma_soba", CODE, *ETAS, "algo.rho=1", "algo.B=null"), 4)[-1].z)
    many = on_quadratic(
        "amigo",
        f"algo.eta_x={ETA_X}",
        "algo.eta_y=1",
        "algo.eta_v=1",
        "algo.n=40",
        "algo.B=null",
        "problem.conditioning=2",
    )
    before, after = (state.z[0] for state in steps(many, 1))
    descended = before - ETA_X * many.problem.hypergradient(before)
    torch.testing.assert_close(after, descended, rtol=1e-9, atol=1e-9)
    assert (one.z[0] - descended).abs().max() > 1e-2


def test_saba_with_one_batch_and_srba_with_period_one_are_descent_along_the_exact_directions():
    """As FedMSA with one local step and no momentum."""
    msa = ["algo.K=1", "algo.rho=1", "algo.B=null", f"algo.alpha={ETA_X}", f"algo.beta=[{ETA_Y},{ETA_V}]"]
    exact = steps(on_quadratic("fedmsa", *msa), 6)
    for algo, words in (("saba", ["algo.B=null"]), ("srba", ["algo.B=4", "algo.period=1"])):
        for state, u in zip(steps(on_quadratic(algo, *ETAS, *words), 6), exact, strict=True):
            same(state.z, u.u)


def test_with_full_batches_the_recursive_estimate_of_srba_is_exact_at_every_step():
    e = on_quadratic("srba", *ETAS, "algo.period=9", "algo.B=null")
    w = Written(e)
    quiet = w.noise(0, 0, Steps())
    for state in steps(e, 8)[1:]:
        same(state.d, w.directions([z.numpy() for z in state.previous], quiet))


@pytest.mark.full
def test_variance_reduction_reaches_the_solution_at_constant_steps():
    """On one client, in two batches; without it the same steps end at a floor."""
    words = ["algo.eta_x=0.15", "algo.eta_y=0.4", "algo.eta_v=0.4", "algo.B=16", "problem.conditioning=2"]
    ends = {}
    for algo, more in (("saba", []), ("srba", ["algo.period=5"]), ("ma_soba", [CODE, "algo.rho=1"])):
        e = on_quadratic(algo, *words, *more, clients=1)
        late = steps(e, 160)[-20:]
        ends[algo] = np.mean([e.problem.evaluate(*s.z)["distance"] for s in late])
    assert ends["saba"] < 5e-3
    assert ends["srba"] < 5e-3
    assert ends["ma_soba"] > 0.05


@pytest.mark.full
def test_a_smaller_last_batch_leaves_no_bias():
    """The mean of the SAGA estimate over batches, by their shares, is the mean of the new values."""
    rng = np.random.default_rng(0)
    shares = torch.tensor([3, 3, 1], dtype=torch.float64) / 7
    values, new = (torch.from_numpy(rng.normal(size=(3, 4))) for _ in range(2))
    table = torch.cat([values, (shares @ values)[None]])
    mean = torch.zeros(4, dtype=torch.float64)
    for j, share in enumerate(shares):
        after = table.clone()
        estimate = saga_(after, new[j], torch.tensor(j), share)
        mean += share * estimate
        torch.testing.assert_close(after[-1], shares @ after[:-1])
        assert torch.equal(after[j], new[j])
    torch.testing.assert_close(mean, shares @ new)


def test_the_published_schedule_can_be_said():
    """SOBA's and FSLA's steps are c / sqrt(t + 1)."""
    eta = config("algo=fsla", "problem=quadratic_bilevel")["algo"]["eta_x"]
    schedule = InversePower(**eta)
    assert [schedule(t) for t in (0, 3, 99)] == pytest.approx([eta["initial"] / c for c in (1, 2, 10)])


def test_a_weight_beyond_one_is_refused():
    with pytest.raises(UserError, match="rho must be at most 1"):
        on_quadratic("ma_soba", "algo.rho=1.5")


def test_storm_goes_with_the_codes_order():
    with pytest.raises(UserError, match="storm=true needs order=code"):
        on_quadratic("fsla", "algo.order=paper")


def test_projected(monkeypatch):
    for algo in ("ma_soba", "amigo", "saba", "srba"):
        e = on_quadratic(algo, *ETAS)
        monkeypatch.setattr(type(e.problem), "project", lambda self, y: y.clamp(-0.01, 0.01))
        assert steps(e, 2)[-1].z[1].abs().max() <= 0.01


@batches
def test_golden_numbers_of_ma_soba_in_the_papers_order(B):
    """All move at the old point, x along the momentum of the rounds before, which is 0 at first; one exchange a round."""
    e = on_quadratic("ma_soba", *ETAS, "algo.rho=0.3", f"algo.B={B}")
    w, xi = Written(e), steps_of(B)
    z, h = w.start(), np.zeros_like(w.start()[0])
    for r, state in enumerate(steps(e, 5)[1:]):
        D = w.directions(z, w.noise(r, 1, xi))
        z = [z_n - eta * d_n for z_n, d_n, eta in zip(z, (h, *D[1:]), (ETA_X, ETA_Y, ETA_V), strict=True)]
        h = 0.7 * h + 0.3 * D[0]
        same((*state.z, state.d), (*z, h))
    assert e.federation.ledger.comm_rounds == 5
    floats = sum(len(z_n) for z_n in z)  # x, y and v down, a direction of each up
    assert e.federation.ledger.down.tolist() == e.federation.ledger.up.tolist() == [5 * 8 * floats] * 2


@batches
@pytest.mark.parametrize("storm", [False, True])
def test_golden_numbers_of_ma_soba_and_fsla(B, storm):
    """FSLA's steps fall like 1 / sqrt(t + 1)."""
    schedule = "{kind: inverse_power, initial: 0.6, power: 0.5}"
    e = on_quadratic("fsla" if storm else "ma_soba", CODE, *ETAS, f"algo.rho={schedule}", f"algo.B={B}")
    w, xi = Written(e), steps_of(B)
    (x, y, v), d, last = w.start(), None, None
    for r in range(4):
        rho = 0.6 / np.sqrt(r + 1)
        y = y - ETA_Y * w.directions((x, y, v), w.noise(r, 1, xi))[1]
        v = v - ETA_V * w.directions((x, y, v), w.noise(r, 2, xi))[2]
        noise = w.noise(r, 3, xi)
        now = w.directions((x, y, v), noise)[0]
        if d is None:
            d = now
        elif storm:
            d = now + (1 - rho) * (d - w.directions(last, noise)[0])
        else:
            d = rho * now + (1 - rho) * d
        last = (x, y, v)
        x = x - ETA_X * d
    same(steps(e, 4)[-1].z, (x, y, v))


@batches
def test_golden_numbers_of_amigo(B):
    """The products with second derivatives have no noise in this problem; one grad_y f serves all steps of v."""
    n = 3
    e = on_quadratic("amigo", *ETAS, f"algo.n={n}", f"algo.B={B}")
    w, xi = Written(e), steps_of(B)
    x, y, v = w.start()
    for r in range(3):
        for k in range(n):
            y = y - ETA_Y * w.directions((x, y, v), w.noise(r, 1 + k, xi))[1]
        *_, f_x, f_y = w.mean((x, y, v), w.noise(r, n + 1, xi))
        quiet = w.noise(r, 0, Steps())
        for _ in range(n):
            v = v - ETA_V * (w.mean((x, y, v), quiet)[1] - f_y)
        x = x - ETA_X * (f_x - w.mean((x, y, v), quiet)[2])
    same(steps(e, 3)[-1].z, (x, y, v))


def test_golden_numbers_of_saba():
    """Tables by client and by batch, of all five quantities, with the mean taken anew each time; 16 examples in batches of 3."""
    B, xi = 3, Steps(1, 3, fixed=True)
    e = on_quadratic("saba", *ETAS, f"algo.B={B}")
    w, p = Written(e), e.problem
    z = w.start()
    sizes = {split: len(p.splits[split][0]) for split in ("train", "val")}
    assert sizes == {"train": 16, "val": 16}
    shares = np.array([3, 3, 3, 3, 3, 1]) / 16
    tables = [[np.zeros((6, len(part))) for part in w.maps(i, z, dict.fromkeys("cde", 0.0))] for i in w.clients]
    # Batches are recognised by their noise
    known = {
        (i, key): [p._noise[key].numpy()[p.splits[split][i][start : start + B]].mean(0) for start in range(0, 16, B)]
        for i in w.clients
        for key, split in (("c", "train"), ("d", "val"))
    }
    met = set()
    for r in range(12):
        noise, answers = w.noise(r, 1, xi), []
        for i in w.clients:
            j_g, j_f = (
                int(np.argmin([np.abs(noise[i][key] - batch).max() for batch in known[i, key]])) for key in "cd"
            )
            met |= {j_g, j_f}
            estimates = []
            for new, table, j in zip(w.maps(i, z, noise[i]), tables[i], (j_g, j_g, j_g, j_f, j_f), strict=True):
                estimates.append(new - table[j] + shares @ table)
                table[j] = new
            answers.append(estimates)
        g_y, hessian, cross, f_x, f_y = (np.mean(part, axis=0) for part in zip(*answers, strict=True))
        d = (f_x - cross, g_y, hessian - f_y)
        z = [z_n - eta * d_n for z_n, d_n, eta in zip(z, d, (ETA_X, ETA_Y, ETA_V), strict=True)]
    assert met == set(range(6))
    same(steps(e, 12)[-1].z, z)


@batches
def test_golden_numbers_of_srba(B):
    """One of two clients takes part between full evaluations, which all do; the same client at both points."""
    e = on_quadratic("srba", *ETAS, "algo.period=3", f"algo.B={B}", "participation.cohort=1")
    w, last, d = Written(e), None, None
    z, everyone = w.start(), w.clients
    for r in range(5):
        if r % 3 == 0:
            w.clients = everyone
            d = w.directions(z, w.noise(r, 1, Steps()))
        else:
            w.clients = e.federation.at(r).cohort()
            noise = w.noise(r, 1, steps_of(B))
            new, old = w.directions(z, noise), w.directions(last, noise)
            d = [d_n + a - b for d_n, a, b in zip(d, new, old, strict=True)]
        last, z = z, [z_n - eta * d_n for z_n, d_n, eta in zip(z, d, (ETA_X, ETA_Y, ETA_V), strict=True)]
    same(steps(e, 5)[-1].z, z)
