"""Up to which number the outbox is complete (E3): no row below it is still to be committed.

Rows get their numbers when they are written, and become visible when their transactions commit, in another order. A
sink that read past a number would never see a row that is committed below it later. So it reads only up to a number
that was given before an instant at which the oldest transaction began that has not ended:

① read the last number that was given; ② read the snapshot's xmax: every transaction that has a number up to ① is below
it, since a row's transaction is numbered before the row is; ③ once the snapshot's xmin has reached that xmax, all of
them have ended. A transaction that is held open delays what was written after it began, and nothing is lost.

For one execution numbers are in order: what changes it has waited for the transaction that changed it before.
"""

from collections import deque

from ondot.store.connection import Connection
from ondot.store.sinks import read_last_no, read_snapshot


class Horizon:
    def __init__(self) -> None:
        self.through = 0
        """The outbox is complete up to this number."""
        self._marks: deque[tuple[int, int]] = deque()
        """A number, and the transaction that xmin must reach for it."""

    async def advance(self, connection: Connection) -> int:
        """Look, and return how far the outbox is complete now. Each statement has a snapshot of its own: the connection
        is in no transaction."""
        last_no = await read_last_no(connection)
        xmin, xmax = await read_snapshot(connection)
        if last_no < self.through:
            # The database was restored to an earlier state.
            self.through = 0
            self._marks.clear()
        if not self._marks or self._marks[-1][0] < last_no:
            self._marks.append((last_no, xmax))
        while self._marks and self._marks[0][1] <= xmin:
            self.through = self._marks.popleft()[0]
        while len(self._marks) > 1 and self._marks[0][1] == self._marks[1][1]:
            self._marks.popleft()
        return self.through
