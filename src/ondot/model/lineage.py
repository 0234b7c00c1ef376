"""Whether PostgreSQL still has what it acknowledged, as far as a server tells of itself (P1–P3).

A cluster has an identifier for life, and its history a timeline that is numbered anew with each promotion and each
recovery to a point in time; a table that a dump brought back is another table. Who finds another identifier, table or
timeline, or a log that ends before what it has seen flushed, stands on a copy that may be older: what ran since would
run again. Only a standby that was synchronous has all, if it is as far as whoever saw a commit confirmed.
"""

from dataclasses import dataclass

from ondot.model.errors import Held


@dataclass(frozen=True, slots=True)
class Server:
    """A server as it is, or as it was known. `is_synchronous`: a standby has each commit before it is acknowledged."""

    system_id: str
    timeline: int
    table_id: int
    is_synchronous: bool

    @property
    def history(self) -> tuple[str, int]:
        """Within one, positions in the log only grow."""
        return self.system_id, self.timeline


def why_broken(known: Server, found: Server) -> str | None:
    """Why what is found may lack what was acknowledged by what was known; None if it has it all."""
    if known.system_id != found.system_id:
        return (
            "this is another PostgreSQL cluster than the one that ondot last ran on"
            " (a dump that was restored, a new server, pg_upgrade?)"
        )
    if known.table_id != found.table_id:
        return "ondot's tables were made anew, with what was in them before (a dump that was restored?)"
    if known.timeline != found.timeline and not known.is_synchronous:
        return (
            f"PostgreSQL has gone from timeline {known.timeline} to {found.timeline} and was not replicated"
            " synchronously (a standby that was promoted, a backup that was restored?)"
        )
    return None


def why_set_back(flushed: int, written: int) -> str | None:
    """`flushed`: how far the log was seen to be safe, in bytes; `written`: where it ends now."""
    if written >= flushed:
        return None
    return (
        f"PostgreSQL's log of changes ends {flushed - written:,} bytes before what was safe in it already"
        " (an older copy of its disk, a standby that was behind?)"
    )


def held(why: str) -> Held:
    return Held(
        f"Held, since {why}. Fires since then may have run already: look what is missing, then say"
        " `ondot doctor --accept-database`."
    )
