"""The simulated federation, and a round of it: its cohorts, its draws, and the one exchange between server and clients."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import count
from typing import Any, NamedTuple, TypeVar, final, overload

import numpy as np
import torch
from torch import Tensor

from fedopt.config import Participation, Work
from fedopt.decimals import exact
from fedopt.errors import UserError, WrongFunction
from fedopt.federation import fence, ranks
from fedopt.federation.answers import Answers, checked_answer, remembered, versions
from fedopt.federation.availability import Availability
from fedopt.federation.client import Client, ClientFn
from fedopt.federation.counting import Calls
from fedopt.federation.draws import Amount, Draws, Epochs, Steps, draw
from fedopt.federation.engines import Engine, Stack
from fedopt.federation.ledger import Ledger, size_in_bytes
from fedopt.federation.memory import Memory
from fedopt.federation.oracles import Oracles
from fedopt.federation.samples import Share
from fedopt.problems import Hierarchical, Nested, Problem
from fedopt.randomness import Purpose, keyed_rng

Message = TypeVar("Message")
Answer = TypeVar("Answer")


class Exchange(NamedTuple):
    """What the clients of an exchange get besides the message.

    Attributes:
        number: The index of the exchange in its round.
        cohort, memory, own, draws: As in `Round.exchange`.
    """

    number: int
    cohort: np.ndarray
    memory: Memory | None
    own: Tensor | None
    draws: Draws


@dataclass(eq=False)
class Federation:
    """M clients and a server.

    With several ranks (``torch.distributed``), each computes some clients of every exchange, and all hold the same server.

    Attributes:
        ledger: The counts of bytes, exchanges and oracle calls so far, and the messages that late clients still answer.
        availability: The clients that are available in each round, and how late they are.

    Args:
        problem: The problem.
        engine: How a client function runs over the clients of an exchange: one by one, or in parallel.
        seed: The seed of all draws.
        participation: Which clients take part in a round, and how uneven their local work is. By default all do, evenly.
        first_order: Whether second derivatives of problems with an inner objective are refused.
    """

    problem: Problem
    engine: Engine
    seed: int
    participation: Participation = field(default_factory=Participation)
    first_order: bool = False

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.problem.clients)
        self.availability = Availability(self.problem, self.seed, self.participation)

    def at(self, r: int) -> "Round":
        """Return round r = 0, 1, ... Its draws depend on the seed and on r alone."""
        return Round(self, r)


@final
class Round:
    """A round of the server: its clients, its draws and its exchanges.

    Made again for the same r, it draws the same numbers.

    Args:
        federation: The clients and the server.
        r: The index of the round, from 0.
    """

    def __init__(self, federation: Federation, r: int):
        self.r, self.problem, self.participation = r, federation.problem, federation.participation
        self._federation, self._exchanges, self._cohorts = federation, count(1), count()
        self._made = Counter[str]()  # exchanges so far, by the names of their draws
        self._by_weight = self.participation.sampling == "by_weight"
        self._asked = False  # whether `weights` was called
        self._shares = list[tuple[np.ndarray, np.ndarray]]()  # the cohorts that were drawn by weight, and their shares
        self._dropped = dict[int, tuple[np.ndarray, np.ndarray]]()  # id -> cohort without exchange, who dropped out
        self._met = np.zeros(self.problem.clients, dtype=bool)  # whether each client took part in an exchange

    def __init_subclass__(cls) -> None:
        raise UserError(f"{cls.__name__}: fedopt.Round cannot be subclassed; change the client functions instead")

    def rng(
        self, name: Purpose | str | None = None, exchange: int = 0, client: int | None = None
    ) -> np.random.Generator:
        """Return a generator for the server's draws of this round, or for draws that the server makes for a client.

        The same arguments give a generator of the same numbers: use a different name for each kind of draw.

        Args:
            name: Your name for the quantity that is drawn.
            exchange: An index that tells draws of one name apart, such as the index of an exchange in this round.
            client: The index of the client. None: the draws are the server's.

        Raises:
            UserError: The name is missing.
        """
        who = 0 if client is None else client + isinstance(name, str)  # 0 is the server in streams with a user's name
        return keyed_rng(self._federation.seed, name, self.r + 1, exchange, who)

    def everyone(self) -> np.ndarray:
        """Return the indices of all clients, ``[M]``."""
        return np.arange(self.problem.clients)

    @cached_property
    def available(self) -> np.ndarray:
        """The sorted indices of the clients that are available in this round: all, unless ``participation`` has a pattern."""
        return self._federation.availability.at(self.r)

    @property
    def cohort_size(self) -> int:
        """The number of clients in a cohort before any drop out: at most those that are available."""
        return min(self.participation.cohort or self.problem.clients, len(self.available))

    @property
    def complete(self) -> bool:
        """Whether every cohort is all clients, on time: ``participation`` has no cohort, dropout, pattern or lateness."""
        who = self.participation
        return self.cohort_size == self.problem.clients and not (who.dropout or who.pattern) and who.punctual

    def cohort(self) -> np.ndarray:
        """Return the sorted indices of the clients of the round's cohort, the same ones at each call.

        They are sampled at the first call, as `new_cohort` samples. If `new_cohort` was called before, the round's cohort is
        independent of the cohorts that it returned.
        """
        return self._cohort

    @cached_property
    def _cohort(self) -> np.ndarray:
        return self.new_cohort()

    def new_cohort(self) -> np.ndarray:
        """Sample another cohort at each call, independent of all others of the round, and return its sorted indices.

        A method whose exchanges are to reach different clients within one round needs it. `cohort_size` clients are drawn
        from `available`, uniformly without replacement; with ``participation.sampling=by_weight`` as `drawn` does, by the
        problem's weights. Some may drop out, but never all. All clients are returned if `complete`.
        """
        if self.complete:
            return self.everyone()
        if self._by_weight:
            self._shares.append(self.drawn(self.problem.weights))
            return self._shares[-1][0]
        number = next(self._cohorts)
        chosen = np.sort(self.rng(Purpose.COHORT, number).choice(self.available, self.cohort_size, replace=False))
        return self._without(chosen, self._staying(chosen, np.ones_like(chosen), number))

    def weights(self, cohort: np.ndarray, *, unbiased: bool = False) -> np.ndarray:
        """Return the weights of a cohort's clients, ``[cohort]``, for a server that weights answers itself.

        Args:
            cohort: The clients: a cohort that this round sampled, or all clients.
            unbiased: Whether a sum with these weights has, over uniform cohorts of a fixed size, the weighted mean over all
                clients as its expectation. They need not sum to 1 then.

        Returns:
            The problem's weights ``p_i``; if ``unbiased``, ``p_i M / |cohort|``. For cohorts that were sampled by weight,
            both are the clients' shares of the draws, whose sum is 1.

        """
        self._asked = True
        return self._weights(cohort, unbiased)

    def _weights(self, cohort: np.ndarray, unbiased: bool = False) -> np.ndarray:
        for sampled, shares in self._shares:
            if sampled is cohort:
                return shares
        p = self.problem.weights[cohort]
        return p * self.problem.clients / len(cohort) if unbiased else p

    def drawn(self, probabilities: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the indices of clients that take part, each once, and their shares of the draws, with the sum 1.

        There are `cohort_size` draws with replacement from `available`, new ones at each call. If these are as many, nothing
        is drawn, except for ``by_weight`` with dropout: clients of probability 0 are left out, and the shares are the
        probabilities. If all that are available have probability 0, they count equally. With dropout each draw is lost by
        itself, so that the shares that are left keep their expectation, but at least one stays.

        Args:
            probabilities: ``[M]``. They are divided by their sum.
        """
        number, available = next(self._cohorts), np.isin(self.everyone(), self.available)
        possible = probabilities * available if probabilities[available].any() else available
        shares, times = possible / possible.sum(), np.ones(len(possible), dtype=int)
        if self.cohort_size < len(self.available) or (self._by_weight and self.participation.dropout):
            times = self.rng(Purpose.COHORT, number).multinomial(self.cohort_size, shares)
            shares = times / self.cohort_size
        chosen = np.flatnonzero(shares)
        left = self._staying(chosen, times[chosen], number)
        shares = shares[chosen] * (left / times[chosen])
        return self._without(chosen, left), shares[left > 0] / shares[left > 0].sum()

    def _without(self, chosen: np.ndarray, left: np.ndarray) -> np.ndarray:
        """Return the clients of whom a draw is left, and note the others, who get the first message to them. left: [chosen]."""
        cohort = chosen[left > 0]
        self._dropped[id(cohort)] = cohort, chosen[left == 0]
        return cohort

    def _staying(self, chosen: np.ndarray, times: np.ndarray, number: int) -> np.ndarray:
        """Return how many draws of each client do not drop out, [chosen], at least one in all.

        times: how often each was drawn. number: the cohort's index in this round.
        """
        dropout = self.participation.dropout
        if not dropout:
            return times
        rngs = (self.rng(Purpose.DROPOUT, number, int(i)) for i in chosen)
        luck = [rng.random(n) for rng, n in zip(rngs, times, strict=True)]
        least = min(dropout, max(map(np.max, luck)))
        return np.array([np.count_nonzero(of_client >= least) for of_client in luck])

    def local(
        self,
        work: Work,
        B: int | None,
        *,
        samples: int | None = None,
        split: str | None = None,
        over: str | None = None,
        replace: bool = False,
        times: int = 1,
    ) -> Steps | Epochs:
        """Return the draws for local work. Participation may make the amount differ between clients.

        Args:
            work: The number of steps or epochs, which may depend on the round. It also says which of the two they are.
            B: As in `Steps`.
            samples: As in `Steps`.
            split: As in `Steps`.
            over: As in `Epochs`, and ignored for steps.
            replace: As in `Steps`, and ignored for epochs.
            times: A factor by which ``work`` is multiplied.

        Returns:
            `Epochs` if the unit of ``work`` is epochs, else `Steps`.
        """
        most = times * work(self.r, self.problem.clients)
        uneven = self.participation.uneven
        amount: Amount = (lambda clients: np.asarray(self.work(most, clients))) if uneven else most
        if work.unit == "epochs":
            return Epochs(amount, B, samples, split, over)
        return Steps(amount, B, samples, split, replace)

    def work(self, most: float | np.ndarray, clients: np.ndarray | None = None) -> float | np.ndarray:
        """Return the amount of local steps, or epochs, of each client in this round.

        It is ``most`` itself if clients are even, else one number for each client. Uneven clients have their entry of
        ``participation.work``, or a draw from ``participation.least`` to ``most``. With ``work=once`` the same random numbers
        are used in all rounds. Stragglers have 0.

        Args:
            most: The amount that the algorithm asks for, one number or ``[M]``.
            clients: The indices of the clients. None: all.
        """
        who, M = self.participation, self.problem.clients
        if not who.uneven:
            return most
        clients = self.everyone() if clients is None else clients
        work = np.broadcast_to(who.work if isinstance(who.work, list) else most, M)[clients]
        if who.least is not None:
            r = 0 if who.work == "once" else self.r + 1  # 0 is no round's
            rngs = [keyed_rng(self._federation.seed, Purpose.WORK, r, client=int(i)) for i in clients]
            work = np.array([rng.integers(who.least, int(exact(m)) + 1) for rng, m in zip(rngs, work, strict=True)])
        if who.stragglers:
            late = self.rng(Purpose.STRAGGLERS).permutation(M)[: round(exact(who.stragglers * M))]
            work = np.where(np.isin(clients, late), 0, work)
        return work

    def _keys(self, exchange: int, clients: np.ndarray) -> Tensor:
        """Return a key for each of these clients, [n], from which the problem's functions draw in this exchange."""
        return torch.tensor([self.rng(Purpose.NOISE, exchange, int(i)).integers(2**62) for i in clients])

    def server_gradient(self, x: Tensor, B: int | None) -> Tensor:
        """Return ``grad f1(x)`` of a hierarchical problem, ``[d]``. It is not counted as an oracle call.

        All calls in one round use the same examples.

        Args:
            x: The point, ``[d]``.
            B: The number of the server's examples, drawn with replacement. None: all.

        Raises:
            UserError: The problem is not hierarchical.
        """
        if not isinstance(self.problem, Hierarchical):
            why = f"needs a hierarchical problem, and {type(self.problem).__name__} is not one; choose another problem"
            raise UserError(f"fed.server_gradient {why}")
        xi = self.problem.server_sample(self.rng(Purpose.SERVER), B)
        return Oracles(self.problem).grad(self.problem.f1, x, xi)

    @overload
    def exchange(
        self,
        client_fn: Callable[[Client, Message], Answer],
        message: Message,
        cohort: np.ndarray,
        **draws: Steps | Epochs,
    ) -> Answer: ...

    @overload
    def exchange(self, client_fn: ClientFn, message: Any, cohort: np.ndarray, **options: Any) -> Any: ...

    def exchange(  # type: ignore[misc]
        self,
        client_fn: ClientFn,
        message: Any,
        cohort: np.ndarray,
        *,
        weights: np.ndarray | None = None,
        memory: Memory | None = None,
        own: Tensor | None = None,
        combine: Callable[[Any, Tensor], Any] | None = None,
        **draws: Steps | Epochs,
    ) -> Any:
        """Send a message to the cohort, run a function on each client, and return the weighted mean of the clients' answers.

        It bills one communication round. Messages and answers are tensors, or (nested) tuples of them.

        Args:
            client_fn: ``client_fn(client, message)``, which computes and returns one client's answer.
            message: The message to every client of the cohort. Clients must not write over it.
            cohort: The indices of the clients, each once.
            weights: ``[cohort]``, the weights of the answers in the mean, used as they are. None: `weights` of the cohort,
                divided by their sum.
            memory: A row for each client, seen as `Client.memory`. ``client_fn`` then returns (answer, new row), and this
                returns (mean, new memory).
            own: ``[cohort, ...]``, a part of the message for each client alone, seen as `Client.own`.
            combine: ``combine(answers, weights)``, which the server calls in place of the mean, such as a median. Each tensor
                of ``answers`` has a leading dimension ``[cohort]``, in double precision. What it returns, this returns: any
                structure, with floating-point tensors in the type of the run.
            draws: The samples that clients take. ``local=Steps(5, B=32)`` makes draws that a client gets by the name
                ``local``.

        Raises:
            UserError: ``client_fn`` uses data of the server's that are not in the message, writes over the message, or
                returns anything but tensors. Or ``memory`` is not a `Memory`, or second derivatives are taken that
                ``first_order`` refuses.
        """
        fence.check(client_fn, message)
        sampled = any(S is cohort for S, _ in self._shares) and (weights is None or self._asked)
        if self._by_weight and not sampled and len(cohort) < self.problem.clients:
            remedy = "take fed.cohort() as it is and fed.weights(cohort), or set participation.sampling=uniform"
            raise WrongFunction(
                client_fn,
                f"is exchanged with a cohort or weights= that ignore how often each client was drawn; {remedy}",
            )
        if not isinstance(memory, Memory | None):
            remedy = "make one, Memory(x.new_zeros(problem.clients, d))"
            raise WrongFunction(client_fn, f"is exchanged with a memory= that is not a fedopt.Memory; {remedy}")
        calls, rows = Calls(), list[Tensor]()
        if weights is None:
            weights = self._weights(cohort)
            weights = weights / weights.sum()
        exchange = Exchange(next(self._exchanges), cohort, memory, own, draws)
        ages = self._federation.availability.ages(self.r)[cohort]
        mine, steps, idle = self._mine(cohort, ages, draws)
        messages = self._by_age(message, draws, ages[mine])
        before = versions(messages)
        answers = Answers(weights, idle, apart=combine is not None)
        client_fn_checked = partial(checked_answer, client_fn, memory is not None)
        engine = self._federation.engine
        for age, sent in messages.items():
            of_age = ages[mine] == age
            for members, stack in self._stacks(exchange, mine[of_age], steps[of_age], sent):
                of_stack = engine.run(client_fn_checked, sent, self.problem, stack, calls)
                if memory is not None:
                    of_stack, new_rows = of_stack
                    rows.extend(new_rows)
                answers.take(of_stack, members)
        self._bill(cohort, message if own is None else (message, own[0]), answers.one, Calls() if idle else calls)
        self._refuse_hidden(client_fn, calls)
        if before != versions(messages):
            raise WrongFunction(client_fn, "writes over its message; write x = x - 1 in place of x -= 1")
        mean = answers.mean(self.problem.start()[0], combine)
        return mean if memory is None else (mean, remembered(memory, cohort, mine, rows, idle))

    def _by_age(self, message: Any, draws: Draws, ages: np.ndarray) -> dict[int, Any]:
        """Return the message that clients answer, by how many rounds late they are, in rising order. Keep today's for later.

        draws: of the exchange; those with the same names are counted. ages: how many rounds late each client is.
        """
        if self.participation.punctual:
            return {0: message}
        sent = self._federation.ledger.sent
        names = "+".join(draws)
        exchange = f"{names}.{self._made[names]}"
        self._made[names] += 1
        sent.keep(message, exchange, self.r, self.r - int(np.max(self.participation.late)))
        return {age: sent.message(message, exchange, self.r, self.r - age) for age in np.unique(ages).tolist()}

    def _mine(self, cohort: np.ndarray, ages: np.ndarray, draws: Draws) -> tuple[np.ndarray, np.ndarray, bool]:
        """Return which clients of the cohort this rank computes, the total steps of each, and whether the rank has none.

        Clients are listed by their places in the cohort: the least late first, and among them the ones with the most steps,
        since stacks of equally busy clients waste the least. A rank without clients computes one that does not count, for the
        shapes of the answers.
        """
        steps = sum((wanted.steps_of(self.problem.splits, cohort) for wanted in draws.values()), 0 * cohort)
        busy = np.lexsort((self.problem.sizes()[cohort], steps, -ages))[::-1]
        mine = busy[ranks.rank() :: ranks.count()]
        idle = len(mine) == 0
        mine = busy[:1] if idle else mine
        return mine, steps[mine], idle

    def _stacks(
        self, exchange: Exchange, mine: np.ndarray, steps: np.ndarray, message: Any
    ) -> Iterator[tuple[np.ndarray, Stack]]:
        """Yield the stacks of clients that are computed in parallel, each with the clients' places in the cohort.

        mine, steps: as `_mine` returns them. message: to these clients.
        """
        problem, memory, own = self.problem, exchange.memory, exchange.own
        rng_of, like = partial(self.rng, Purpose.SAMPLES, exchange.number), problem.start()[0]
        for members in self._federation.engine.stacks(mine, steps, size_in_bytes(message)):
            clients = exchange.cohort[members]
            whole, drawn = draw(exchange.draws, problem.splits, clients, rng_of, like)
            share = Share(
                client=torch.from_numpy(clients).to(like.device),
                place=torch.arange(len(clients), device=like.device),
                whole=whole,
                positions={name: of_name.positions for name, of_name in drawn.items()},
                steps={
                    name: torch.from_numpy(of_name.steps).to(like.device)
                    for name, of_name in drawn.items()
                    if np.ptp(of_name.steps)
                },
                memory=None if memory is None else memory.rows(clients),
                own=None if own is None else own[members.tolist()],
                key=self._keys(exchange.number, clients).to(like.device) if problem.random else None,
            )
            yield members, Stack(clients, drawn, share)

    def _bill(self, cohort: np.ndarray, sent: Any, answer: Any, calls: Calls) -> None:
        """Bill one communication round: the bytes that each client of the cohort gets and sends back, and the clients' calls.

        sent, answer: the message to one client, and its answer.
        """
        ledger, size = self._federation.ledger, size_in_bytes(sent)
        ledger.bill(cohort, size, size_in_bytes(answer))
        ledger.count(calls)
        ledger.rounds[cohort] += ~self._met[cohort]
        self._met[cohort] = True
        ledger.lost[self._dropped.pop(id(cohort), (cohort, cohort[:0]))[1]] += size

    def _refuse_hidden(self, client_fn: ClientFn, calls: Calls) -> None:
        """Raise UserError if clients did what their method may not.

        That is, if they took second derivatives in a first-order method, or stored a tensor where only the server looks.

        Args:
            client_fn: The client function.
            calls: The oracle calls of the exchange.
        """
        if self._federation.first_order and isinstance(self.problem, Nested) and calls.hvp + calls.jvp:
            why = "takes second derivatives, and its algorithm says first_order = True; remove them, or first_order"
            raise WrongFunction(client_fn, why)
        fence.check(client_fn)  # again: a client may have put its answer where only the server looks
