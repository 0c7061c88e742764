from fedopt.bench.outcome import comparing as comparing
from fedopt.bench.outcome import remarks as remarks
from fedopt.bench.outcome import repeating as repeating
from fedopt.bench.outcome import value_of as value_of
from fedopt.bench.outcome import winners as winners
from fedopt.bench.outcome import with_values as with_values
from fedopt.bench.outcome import write_searches as write_searches
from fedopt.bench.pages import write_pages as write_pages
from fedopt.bench.pool import Pools as Pools
from fedopt.bench.release import released as released
from fedopt.bench.release import with_newer as with_newer
from fedopt.bench.release import write_table as write_table
from fedopt.bench.suite import Entries as Entries
from fedopt.bench.suite import tasks as tasks
from fedopt.bench.trials import How as How
from fedopt.bench.tune import planned_searches as planned_searches
from fedopt.bench.tune import search_all as search_all

SAMPLERS: tuple[str, ...]
