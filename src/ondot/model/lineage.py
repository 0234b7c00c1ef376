"""Whether PostgreSQL still has everything it acknowledged, as far as the server can show it (P1–P3).

A cluster has an identifier for life. Its timeline gets a new number with each promotion and each point-in-time
recovery. A table restored from a dump is another table. If ondot finds another identifier, table or timeline, or a log
that ends before a position it has seen flushed, the database may be an older copy: work done since would run again.
Only a synchronous standby has everything, if it is as far as the latest commit that was confirmed.
"""

from dataclasses import dataclass

from ondot.model.errors import DatabaseHeld


@dataclass(frozen=True, slots=True)
class Server:
    """A server, now or as last recorded. `is_synchronous`: a standby has each commit before it is acknowledged."""

    system_id: str
    timeline: int
    table_id: int
    is_synchronous: bool

    @property
    def history(self) -> tuple[str, int]:
        """Within one history, positions in the log only grow."""
        return self.system_id, self.timeline


def why_broken(known: Server, found: Server) -> str | None:
    """Why the server found may lack commits that the known one acknowledged; None if it has them all."""
    if known.system_id != found.system_id:
        return (
            "this is another PostgreSQL cluster than the one that ondot last ran on"
            " (a restored dump, a new server, pg_upgrade?)"
        )
    if known.table_id != found.table_id:
        return "ondot's tables were created again, with their former rows (a restored dump?)"
    if known.timeline != found.timeline and not known.is_synchronous:
        return (
            f"PostgreSQL went from timeline {known.timeline} to {found.timeline} without synchronous replication"
            " (a promoted standby, a restored backup?)"
        )
    return None


def why_set_back(flushed: int, written: int) -> str | None:
    """`flushed`: the position up to which the log was seen flushed, in bytes; `written`: where it ends now."""
    if written >= flushed:
        return None
    return (
        f"PostgreSQL's log ends {flushed - written:,} bytes before a position that was already flushed"
        " (an older copy of its disk, a standby that was behind?)"
    )


def held_error(why: str) -> DatabaseHeld:
    return DatabaseHeld(
        f"Nothing starts, because {why}. Fires since then may have run already: check what is missing, then run"
        " `ondot doctor --accept-database`."
    )
