"""The one stream of rows: cut the maps of a layer into blocks, compute on each, in one thread or several.

A block holds neighbouring queries of some heads, without the keys that none of them sees. No loop over rows anywhere else chooses
its sizes; whoever reads maps calls :func:`stream`, :func:`gather`, or, to compute rows itself, :func:`blocks_of`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from diffscope.attention.components import Rows
from diffscope.attention.memory import Workspace, pooled_workspace, trim_heap

if TYPE_CHECKING:
    from diffscope.attention.layer import Heads, LayerAttention, Queries

T = TypeVar("T")

# All temporaries of a block together, in bytes. On a CPU one of eight has 4 MiB, which stays in the cache: smaller ones spend
# their time between operations, and threads theirs waiting for the interpreter. On a GPU one of eight has 64 MiB, which keeps it
# busy.
BLOCK_BYTES = {"cpu": 2**25, "cuda": 2**29}
MIN_ROWS = 16  # of one head: with fewer, reading the keys takes longer than the products with them
MIN_BLOCKS = 16  # of a long prompt: the fewer the blocks, the more keys are computed that no row of a block sees
MIN_PARALLEL_VALUES = 2**22  # (head, query, key) values of one map, below which threads cost more than they save
TASKS_AHEAD = 2  # tasks that a worker may be ahead of the one whose result is due next
BLOCKS_BETWEEN_TRIMS = 16  # of a layer with changes, whose rows take new memory


@dataclass(frozen=True)
class Block:
    """Some of the heads and queries that are streamed.

    Attributes
    ----------
    heads : range
        Of the streamed heads.
    at : slice or int64 Tensor, (query,)
        Which of the streamed queries; a slice if those are in ascending order.
    queries : int64 Tensor, (query,)
        Their positions in the prompt, ascending.
    """

    heads: range
    at: slice | Tensor
    queries: Tensor


def block_size(
    layer: LayerAttention,
    heads: int | None = None,
    *,
    all_heads: bool = False,
    temporaries: int = 8,
) -> tuple[int, int]:
    """Return how many heads and queries a block has at most; `heads` are streamed, other parameters as of :func:`blocks_of`."""
    heads = layer.n_heads if heads is None else heads
    width = layer.n_keys if layer.mask.window is None else min(layer.n_keys, layer.mask.window + MIN_ROWS)
    most = max(8 * MIN_ROWS, layer.n_queries // MIN_BLOCKS)
    elements = BLOCK_BYTES.get(layer.q.device.type, BLOCK_BYTES["cpu"]) // (temporaries * layer.dtype.itemsize)
    some = heads if all_heads else max(1, min(heads, elements // (4 * MIN_ROWS * width)))
    return some, max(MIN_ROWS, min(most, elements // (max(some, 1) * width)))


def blocks_of(
    layer: LayerAttention,
    queries: Queries = None,
    *,
    heads: Heads = None,
    all_heads: bool = False,
    temporaries: int = 8,
) -> Iterator[Block]:
    """Cut queries into blocks of neighbours, which see about the same keys.

    The last queries come first: under a causal mask they see most keys, so that no later block needs more memory, and threads end
    at about the same time.

    Parameters
    ----------
    layer : LayerAttention
    queries : slice, sequence of int or int64 Tensor, optional
        Positions, in any order; by default all.
    heads : sequence of int, optional
        By default all.
    all_heads : bool
        Whether every block has all of these heads.
    temporaries : int
        How many tensors (head, query, key) the computation holds at once; the more, the smaller a block.

    Yields
    ------
    Block
    """
    queries = layer.query_positions(queries)
    count = layer.n_heads if heads is None else len(heads)
    some, rows = block_size(layer, count, all_heads=all_heads, temporaries=temporaries)
    order = queries.argsort(stable=True)
    ascending = bool((queries.diff() >= 0).all())
    for stop in range(len(order), 0, -rows):
        at = slice(max(0, stop - rows), stop)
        for head in range(0, count, max(some, 1)):
            yield Block(range(head, min(head + some, count)), at if ascending else order[at], queries[order[at]])


def stream(
    layer: LayerAttention,
    queries: Queries,
    compute: Callable[[Block, Rows], T],
    *,
    heads: Heads = None,
    all_heads: bool = False,
    temporaries: int = 8,
    workers: Workers | None = None,
    progress: Callable[[float], None] | None = None,
) -> Iterator[tuple[Block, T]]:
    """Compute on the rows of every block, and yield each block with its result, in the order of :func:`blocks_of`.

    Parameters
    ----------
    layer : LayerAttention
        Of one prompt.
    queries, heads, all_heads, temporaries
        As of :func:`blocks_of`.
    compute : callable
        (block, rows) → result. The rows lack the keys that no query of the block sees (``visible_rows``). Their
        memory is used again for the next block: a result holds none of it.
    workers : Workers, optional
        Threads, which compute without gradients; by default the calling thread alone, as for what is too
        little to share.
    progress : callable, optional
        Called after every block but the last with the share of blocks that are done.

    Yields
    ------
    block : Block
    result : what `compute` returned
    """
    blocks = list(blocks_of(layer, queries, heads=heads, all_heads=all_heads, temporaries=temporaries))
    chosen = None if heads is None else layer.head_numbers(heads)

    def task(block: Block, workspace: Workspace) -> T:
        of_block = block.heads if chosen is None else chosen[block.heads.start : block.heads.stop]
        return compute(block, layer.visible_rows(block.queries, of_block, workspace))

    values = sum(len(block.heads) * len(block.queries) for block in blocks) * layer.n_keys
    alone = workers is None or layer.q.device.type != "cpu" or values < MIN_PARALLEL_VALUES
    results = (workers or Workers(1)).run((partial(task, block) for block in blocks), alone)
    for number, (block, result) in enumerate(zip(blocks, results), start=1):
        yield block, result
        if progress is not None and number < len(blocks):
            progress(number / len(blocks))
        if layer.changes and number % BLOCKS_BETWEEN_TRIMS == 0:
            trim_heap()


def gather(
    layer: LayerAttention,
    queries: Queries,
    compute: Callable[[Block, Rows], Tensor],
    *,
    heads: Heads = None,
    all_heads: bool = False,
    temporaries: int = 8,
) -> Tensor:
    """Compute on the rows of every block as :func:`stream` does, and put the results together.

    Parameters
    ----------
    layer, queries, heads, all_heads, temporaries
        As of :func:`stream`.
    compute : callable
        (block, rows) → Tensor (head, query, ...).

    Returns
    -------
    Tensor, (head, query, ...)
        Queries in the order given.
    """
    queries = layer.query_positions(queries)
    count = layer.n_heads if heads is None else len(heads)
    out: Tensor | None = None
    for block, values in stream(layer, queries, compute, heads=heads, all_heads=all_heads, temporaries=temporaries):
        if out is None:
            out = values.new_empty(count, len(queries), *values.shape[2:])
        out[block.heads.start : block.heads.stop, block.at] = values
    if out is None:  # no head or no query
        return compute(Block(range(count), slice(0, 0), queries), layer.rows(queries, heads))
    return out


class Workers:
    """A pool of threads, each with one core and a workspace; a context manager.

    Results come in the order of the tasks, so that sums over them do not depend on which thread was faster. Two blocks on two
    cores are faster than one block whose every operation is split in two, and do not suffer when something else needs a core
    for a while.

    Parameters
    ----------
    count : int, optional
        Threads; by default as many as torch would use for one operation. With one, everything runs in the calling thread.
    """

    def __init__(self, count: int | None = None) -> None:
        self.count = count or torch.get_num_threads()
        self._local = threading.local()
        self._pool: ThreadPoolExecutor | None = None

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None

    def run(self, tasks: Iterable[Callable[[Workspace], T]], alone: bool = False) -> Iterator[T]:
        """Yield the results of tasks in their order.

        Parameters
        ----------
        tasks : iterable of callables
            Each is called with the workspace of the thread that it runs in.
        alone : bool
            Whether to stay in the calling thread: on a GPU, or if there is too little to do.
        """
        if alone or self.count == 1:
            with pooled_workspace() as workspace:
                yield from (task(workspace) for task in tasks)
            return
        self._pool = self._pool or self._start()
        running: deque[Future[T]] = deque()
        for task in tasks:
            running.append(self._pool.submit(self._within, task))
            if len(running) >= TASKS_AHEAD * self.count:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()

    def _within(self, task: Callable[[Workspace], T]) -> T:
        if not hasattr(self._local, "workspace"):
            self._local.workspace = Workspace()
        with torch.no_grad():  # a thread starts with gradients on
            return task(self._local.workspace)

    def _start(self) -> ThreadPoolExecutor:
        """Start threads in which torch uses one core. That setting is shared with threads to come, for which it is restored."""
        pool = ThreadPoolExecutor(self.count)
        started = threading.Barrier(self.count)
        before = torch.get_num_threads()

        def single() -> None:
            torch.get_num_threads()  # at its first call a thread takes over the shared setting, and never again
            torch.set_num_threads(1)
            started.wait()

        for ready in [pool.submit(single) for _ in range(self.count)]:
            ready.result()
        torch.set_num_threads(before)
        return pool
