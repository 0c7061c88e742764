"""The simulated federation, and its rounds: cohorts, random draws, and exchanges between the server and clients."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import count
from typing import Any, NamedTuple, TypeVar, final, overload

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_unflatten

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
from fedopt.federation.robust import Robust, origins
from fedopt.federation.samples import Share
from fedopt.problems import Hierarchical, Nested, Problem
from fedopt.randomness import Purpose, keyed_rng

Message = TypeVar("Message")
Answer = TypeVar("Answer")


class Exchange(NamedTuple):
    """The values that the clients of an exchange get in addition to the message.

    Attributes:
        number: The index of the exchange in its round, from 1.
        cohort: The indices of the clients.
        memory: The per-client state. None: the exchange has none.
        own: The part of the message that differs between clients, ``[cohort, ...]``. None: there is no such part.
        draws: The requested samples by name.
    """

    number: int
    cohort: np.ndarray
    memory: Memory | None
    own: Tensor | None
    draws: Draws


@dataclass(eq=False)
class Federation:
    """M clients and a server.

    With several ranks (processes of ``torch.distributed``), each rank computes some of the clients of every exchange, and every
    rank has a copy of the server.

    Attributes:
        ledger: The costs so far: bytes, communication rounds and oracle calls. It also stores the messages to which late clients
            respond.
        availability: Which clients are available in each round, and how late their answers are.
        lies: Whether each client sends wrong answers, ``[M]``.
        rule: The rule by which the server combines answers. None: by the weighted mean.

    Args:
        problem: The problem.
        engine: The engine, which runs the clients of an exchange one by one or in parallel.
        seed: The seed of all random draws.
        participation: Which clients take part in a round, and how much their amounts of local work differ. By default, all
            clients take part and do the same amount of work.
        first_order: Whether second derivatives of bilevel problems are refused.
    """

    problem: Problem
    engine: Engine
    seed: int
    participation: Participation = field(default_factory=Participation)
    first_order: bool = False

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.problem.clients)
        self.availability = Availability(self.problem, self.seed, self.participation)
        M, hostile, rule = self.problem.clients, self.participation.hostile, self.participation.rule
        self.lies = np.isin(np.arange(M), hostile.clients(M) if hostile and hostile.attack != "labels" else ())
        self.rule = rule if rule and rule.kind != "mean" else None

    def at(self, r: int) -> "Round":
        """Return a round. Its random draws depend only on the seed and on r.

        Args:
            r: The index of the round, from 0.
        """
        return Round(self, r)


@final
class Round:
    """One round of a method: it samples cohorts, draws random numbers and exchanges messages with clients.

    A second object for the same r draws the same numbers.

    Args:
        federation: The clients and the server.
        r: The index of the round, from 0.
    """

    def __init__(self, federation: Federation, r: int):
        self.r, self.problem, self.participation = r, federation.problem, federation.participation
        self._federation, self._exchanges, self._cohorts = federation, count(1), count()
        self._made = Counter[str]()  # number of exchanges so far, by name
        self._by_weight = self.participation.sampling == "by_weight"
        self._asked = False  # whether `weights` was called
        self._shares = list[tuple[np.ndarray, np.ndarray]]()  # cohorts sampled by weight, and their shares
        # id -> (cohort that has not exchanged yet, clients that dropped out)
        self._dropped = dict[int, tuple[np.ndarray, np.ndarray]]()
        self._met = np.zeros(self.problem.clients, dtype=bool)  # whether each client took part in an exchange

    def __init_subclass__(cls) -> None:
        raise UserError(f"{cls.__name__}: fedopt.Round cannot be subclassed; change the method's step instead")

    def rng(
        self, name: Purpose | str | None = None, exchange: int = 0, client: int | None = None
    ) -> np.random.Generator:
        """Return a random generator for draws of the server in this round.

        Generators with the same arguments give the same numbers, so use a different name for each random quantity.

        Args:
            name: A name for the random quantity.
            exchange: An index that distinguishes several draws of this quantity in a round.
            client: The index of the client for which the server draws. None: the draw does not concern a single client.

        Raises:
            UserError: The name is missing.
        """
        who = 0 if client is None else client + isinstance(name, str)  # with a user's name, 0 is the server
        return keyed_rng(self._federation.seed, name, self.r + 1, exchange, who)

    def everyone(self) -> np.ndarray:
        """Return the indices of all clients, ``[M]``."""
        return np.arange(self.problem.clients)

    @cached_property
    def available(self) -> np.ndarray:
        """The sorted indices of the available clients in this round. Without ``participation.pattern``, these are all clients."""
        return self._federation.availability.at(self.r)

    @property
    def cohort_size(self) -> int:
        """The number of clients in a cohort before dropout. It is at most the number of available clients."""
        return min(self.participation.cohort or self.problem.clients, len(self.available))

    @property
    def complete(self) -> bool:
        """Whether every cohort contains all clients, and all answers are on time.

        This is true if ``participation`` sets no cohort, dropout, pattern or lateness.
        """
        who = self.participation
        return self.cohort_size == self.problem.clients and not (who.dropout or who.pattern) and who.punctual

    def cohort(self) -> np.ndarray:
        """Return the sorted indices of the clients in the round's cohort. Every call returns the same clients.

        The first call samples the cohort by `new_cohort`. The round's cohort is independent of all other cohorts that
        `new_cohort` returns in this round.
        """
        return self._cohort

    @cached_property
    def _cohort(self) -> np.ndarray:
        return self.new_cohort()

    def new_cohort(self) -> np.ndarray:
        """Sample a new cohort, independent of the other cohorts of this round, and return the sorted indices of its clients.

        Use this method if the exchanges of one round should reach different clients. It samples `cohort_size` of the `available`
        clients uniformly without replacement. With ``participation.sampling=by_weight``, it samples them with replacement, with
        the problem's weights as probabilities (see `drawn`). Some clients may drop out, but never all. If `complete` is True, all
        clients are returned.
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
        """Return the weights of the clients in a cohort, ``[cohort]``, for a server that weights answers itself.

        Args:
            cohort: The indices of the clients: a cohort that this round sampled, or all clients.
            unbiased: Whether to scale the weights such that the expectation of the weighted sum over a uniformly sampled cohort
                of a fixed size is the weighted sum over all clients. The scaled weights need not sum to 1.

        Returns:
            The problem's weights ``p_i``, or ``p_i M / |cohort|`` if ``unbiased``. If the cohort was sampled by weight, the
            result is in both cases each client's share of the draws; these shares sum to 1.
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
        """Sample clients with replacement from `available`, and return their indices and their shares of the draws.

        Each call makes `cohort_size` new draws. A client that was drawn several times is returned once. Its share is the
        fraction of the draws that chose it; the shares sum to 1.

        If all available clients fit into the cohort, nothing is drawn, unless ``by_weight`` and dropout are both used: all
        available clients of positive probability take part, and the shares are the probabilities. If all available clients have
        probability 0, they are equally likely. Dropout removes each draw independently, but at least one draw remains.

        Args:
            probabilities: The probability of each client, ``[M]``. They are divided by their sum over the available clients.

        Returns:
            The sorted indices of the clients, ``[n]``, and their shares, ``[n]``.
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
        """Return the clients that did not drop out. Store the other clients, since the first message to them is billed as lost.

        Args:
            chosen: The indices of the sampled clients.
            left: How many of each client's draws did not drop out, ``[chosen]``.
        """
        cohort = chosen[left > 0]
        self._dropped[id(cohort)] = cohort, chosen[left == 0]
        return cohort

    def _staying(self, chosen: np.ndarray, times: np.ndarray, number: int) -> np.ndarray:
        """Return the number of draws of each client that do not drop out, ``[chosen]``. At least one draw remains in total.

        Args:
            chosen: The indices of the sampled clients.
            times: The number of times each of these clients was drawn, ``[chosen]``.
            number: The index of the cohort within the round.
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
        """Return the draws for local work, whose amount may differ between clients if ``participation`` says so.

        Args:
            work: The number of local steps or epochs, with its unit. It may depend on the round.
            B: The batch size. None: each sample contains all examples of the client.
            samples: The number of samples per step, which the client gets as a list. None: one sample, which is not in a list.
            split: The name of the split to draw from. None: all splits.
            over: For epochs, the name of the split whose size determines the number of steps per epoch. None: ``split``, or the
                first split. Ignored for steps.
            replace: For steps, whether the examples of a sample are drawn with replacement. Ignored for epochs.
            times: A factor by which ``work`` is multiplied.

        Returns:
            `Epochs` if the unit of ``work`` is epochs, otherwise `Steps`.
        """
        most = times * work(self.r, self.problem.clients)
        uneven = self.participation.uneven
        amount: Amount = (lambda clients: np.asarray(self.work(most, clients))) if uneven else most
        if work.unit == "epochs":
            return Epochs(amount, B, samples, split, over)
        return Steps(amount, B, samples, split, replace)

    def work(self, most: float | np.ndarray, clients: np.ndarray | None = None) -> float | np.ndarray:
        """Return each client's amount of local work (steps or epochs) in this round.

        If all clients do the same amount of work, this is ``most`` itself. Otherwise there is one number per client, which
        comes from the list ``participation.work`` or is drawn between ``participation.least`` and ``most``. With
        ``participation.work=once``, all rounds use the same random numbers. Stragglers do no work, so their number is 0.

        Args:
            most: The amount that the algorithm requests: one number, or one number per client, ``[M]``.
            clients: The indices of the clients. None: all clients.
        """
        who, M = self.participation, self.problem.clients
        if not who.uneven:
            return most
        clients = self.everyone() if clients is None else clients
        work = np.broadcast_to(who.work if isinstance(who.work, list) else most, M)[clients]
        if who.least is not None:
            r = 0 if who.work == "once" else self.r + 1  # rounds are numbered from 1 here
            rngs = [keyed_rng(self._federation.seed, Purpose.WORK, r, client=int(i)) for i in clients]
            work = np.array([rng.integers(who.least, int(exact(m)) + 1) for rng, m in zip(rngs, work, strict=True)])
        if who.stragglers:
            late = self.rng(Purpose.STRAGGLERS).permutation(M)[: round(exact(who.stragglers * M))]
            work = np.where(np.isin(clients, late), 0, work)
        return work

    def _keys(self, exchange: int, clients: np.ndarray) -> Tensor:
        """Return a key for each client, ``[n]``. The problem's functions derive their random numbers in this exchange from it.

        Args:
            exchange: The index of the exchange in this round.
            clients: The indices of the clients, ``[n]``.
        """
        return torch.tensor([self.rng(Purpose.NOISE, exchange, int(i)).integers(2**62) for i in clients])

    def _key(self, exchange: int, name: str) -> int:
        """Return the number from which clients derive their random numbers of a name in an exchange of this round."""
        return int(self.rng(f"client.{name}", exchange).integers(2**62))

    def server_gradient(self, x: Tensor, B: int | None) -> Tensor:
        """Return the gradient of the server's objective, ``grad f1(x)``, ``[d]``, for a hierarchical problem.

        It is not counted as an oracle call. All calls in one round with the same B use the same examples.

        Args:
            x: The point, ``[d]``.
            B: The number of the server's examples to draw with replacement. None: all examples.

        Raises:
            UserError: The problem is not hierarchical.
        """
        if not isinstance(self.problem, Hierarchical):
            why = f"needs a hierarchical problem, but {type(self.problem).__name__} is not one; choose another problem"
            raise UserError(f"fed.server_gradient {why}")
        xi = self.problem.server_sample(self.rng(Purpose.SERVER), B)
        return Oracles(self.problem).grad(self.problem.f1, x, xi)

    @overload
    def exchange(
        self,
        client_fn: Callable[[Client, Message], Answer],
        message: Message,
        cohort: np.ndarray,
        *,
        origin: Any = None,
        name: str | None = None,
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
        origin: Any = None,
        name: str | None = None,
        **draws: Steps | Epochs,
    ) -> Any:
        """Send a message to a cohort, run a function on each client, and return the weighted mean of the clients' answers.

        It counts as one communication round. Messages and answers are tensors or (nested) tuples of tensors. A message may also
        contain numbers (hyperparameters), which cost no bytes.

        Args:
            client_fn: ``client_fn(client, message)``, which returns one client's answer.
            message: The message to every client of the cohort. Clients must not overwrite it.
            cohort: The indices of the clients. Each client occurs once.
            weights: The weights of the answers in the mean, ``[cohort]``, which are not normalised. None: the method `weights`
                gives the weights, which are divided by their sum.
            memory: Per-client state, one row per client; a client reads its row as `Client.memory`. ``client_fn`` must then
                return (answer, new row), and this method returns (mean, new memory). None: no state.
            own: A part of the message that differs between clients, ``[cohort, ...]``; a client reads its row as `Client.own`.
                None: no such part.
            combine: ``combine(answers, weights)``, which replaces the mean, for example by a median. Each tensor of ``answers``
                has the shape ``[cohort, ...]`` and double precision. Its result, of any structure, is returned in place of the
                mean, with floating-point tensors converted to the dtype of the run. None: the weighted mean.
            origin: The point from which answers are changes: a tuple like an answer, with None in place of tensors or tuples that
                are directions. None: the whole answer is a direction.
            name: A name under which state of this exchange is stored from round to round. None: the names of the draws.
            draws: The samples that clients use, by name. With ``local=Steps(5, B=32)``, a client gets its samples by the name
                ``local``.

        Returns:
            The mean of the answers, with the structure of one answer. With ``memory``, the pair (mean, new memory).

        Raises:
            UserError: ``client_fn`` uses data of the server that are not in the message, overwrites the message, or returns
                anything other than tensors; ``memory`` is not a `Memory`; or an algorithm with ``first_order = True`` takes
                second derivatives.
        """
        fence.check(client_fn, message)
        sampled = any(S is cohort for S, _ in self._shares) and (weights is None or self._asked)
        if self._by_weight and not sampled and len(cohort) < self.problem.clients:
            remedy = "pass fed.cohort() unchanged with fed.weights(cohort), or set participation.sampling=uniform"
            why = "uses a cohort or weights= that ignore how often each client was drawn"
            raise WrongFunction(client_fn, f"{why}; {remedy}")
        if not isinstance(memory, Memory | None):
            remedy = "create one, such as Memory(x.new_zeros(problem.clients, d))"
            raise WrongFunction(client_fn, f"is exchanged with a memory= that is not a fedopt.Memory; {remedy}")
        name, calls, rows = self._name(name or "+".join(draws)), Calls(), list[Tensor]()
        if weights is None:
            weights = self._weights(cohort)
            weights = weights / weights.sum()
        exchange = Exchange(next(self._exchanges), cohort, memory, own, draws)
        ages = self._federation.availability.ages(self.r)[cohort]
        mine, steps, idle = self._mine(cohort, ages, draws)
        messages = self._by_age(message, name, ages[mine])
        before = versions(messages)
        lies, rule = self._federation.lies[cohort], self._federation.rule
        if rule and combine:
            why = "this method combines answers by a function of its own; set participation.rule=null"
            raise UserError(f"participation.rule.kind={rule.kind}: {why}")
        answers = Answers(weights, idle, apart=bool(combine or rule or lies.any()))
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
            raise WrongFunction(client_fn, "writes over its message; write x = x - 1 instead of x -= 1")
        try:
            starts = origins(origin, tree_unflatten(answers.one, answers.structure))
        except (TypeError, ValueError, AttributeError):
            why = "is exchanged with an origin= unlike its answer; pass a tuple of the answer's shapes, with None for directions"
            raise WrongFunction(client_fn, why) from None
        if rule or lies.any():

            def noise(d: int) -> np.ndarray:
                rngs = (self.rng(Purpose.HOSTILE, exchange.number, int(i)) for i in cohort[lies])
                return np.stack([rng.standard_normal(d) for rng in rngs])

            attack, centres = self.participation.hostile, self._federation.ledger.centres
            combine = Robust(starts, lies, attack, noise, rule, combine, centres, f"centre.{name}")
        mean = answers.mean(self.problem.start()[0], combine)
        return mean if memory is None else (mean, remembered(memory, cohort, mine, rows, idle))

    def _name(self, name: str) -> str:
        """Return the name of an exchange, followed by the number of exchanges of this name that the round has had."""
        self._made[name] += 1
        return f"{name}.{self._made[name] - 1}"

    def _by_age(self, message: Any, exchange: str, ages: np.ndarray) -> dict[int, Any]:
        """Return the messages to which this round's answers respond: age in rounds -> the message sent that many rounds ago.

        The ages are in ascending order. If answers may be late, the current message is stored for later rounds.

        Args:
            message: The current message.
            exchange: The name of the exchange, with its number.
            ages: The age in rounds of the message that each client answers.
        """
        if self.participation.punctual:
            return {0: message}
        sent = self._federation.ledger.sent
        sent.keep(message, exchange, self.r, self.r - int(np.max(self.participation.late)))
        return {age: sent.message(message, exchange, self.r, self.r - age) for age in np.unique(ages).tolist()}

    def _mine(self, cohort: np.ndarray, ages: np.ndarray, draws: Draws) -> tuple[np.ndarray, np.ndarray, bool]:
        """Choose the clients of the cohort that this rank computes.

        Clients are sorted by age, and clients of the same age by their number of steps, largest first, so that a stack has
        clients with similar numbers of steps. A rank without clients computes one client, only to know the shapes of the
        answers; this client's answer is ignored.

        Args:
            cohort: The indices of the clients.
            ages: The age in rounds of the message that each client answers, ``[cohort]``.
            draws: The draws of the exchange, which determine the numbers of steps.

        Returns:
            The positions of the chosen clients in the cohort, their total numbers of steps, and whether this rank has no client.
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
        """Yield the stacks of clients that are computed in parallel, each with the positions of its clients in the cohort.

        Args:
            exchange: The exchange.
            mine: The positions in the cohort of the clients that this rank computes.
            steps: The total number of local steps of each of these clients.
            message: The message to these clients.
        """
        problem, memory, own = self.problem, exchange.memory, exchange.own
        rng_of, like = partial(self.rng, Purpose.SAMPLES, exchange.number), problem.start()[0]
        for members in self._federation.engine.stacks(mine, steps, size_in_bytes(message)):
            clients = exchange.cohort[members]
            whole, drawn = draw(exchange.draws, problem.splits, clients, rng_of, like)
            uneven = {name: of_name.steps for name, of_name in drawn.items() if np.ptp(of_name.steps)}
            share = Share(
                client=torch.from_numpy(clients).to(like.device),
                place=torch.arange(len(clients), device=like.device),
                whole=whole,
                positions={name: of_name.positions for name, of_name in drawn.items()},
                steps={name: torch.from_numpy(steps).to(like.device) for name, steps in uneven.items()},
                memory=None if memory is None else memory.rows(clients),
                own=None if own is None else own[members.tolist()],
                key=self._keys(exchange.number, clients).to(like.device) if problem.random else None,
            )
            yield members, Stack(clients, drawn, share, partial(self._key, exchange.number))

    def _bill(self, cohort: np.ndarray, sent: Any, answer: Any, calls: Calls) -> None:
        """Add the cost of one communication round to the ledger.

        Args:
            cohort: The indices of the clients.
            sent: The message to one client.
            answer: The answer of one client.
            calls: The oracle calls of the clients that this rank computed.
        """
        ledger, size = self._federation.ledger, size_in_bytes(sent)
        ledger.bill(cohort, size, size_in_bytes(answer))
        ledger.count(calls)
        ledger.rounds[cohort] += ~self._met[cohort]
        self._met[cohort] = True
        ledger.lost[self._dropped.pop(id(cohort), (cohort, cohort[:0]))[1]] += size

    def _refuse_hidden(self, client_fn: ClientFn, calls: Calls) -> None:
        """Raise UserError if a client took second derivatives in a first-order method, or stored a tensor on the server.

        Args:
            client_fn: The client function.
            calls: The oracle calls of the exchange.
        """
        if self._federation.first_order and isinstance(self.problem, Nested) and calls.hvp + calls.jvp:
            why = "takes second derivatives, but its algorithm sets first_order = True; remove one of the two"
            raise WrongFunction(client_fn, why)
        fence.check(client_fn)  # again: a client may have stored its answer in a variable of the server
