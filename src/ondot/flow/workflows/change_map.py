"""Change concurrency and tolerance of a map while it runs (W7). Items that run are left alone."""

from ondot.flow.dispatch import Dispatcher
from ondot.flow.workflows.advance import advance_run
from ondot.flow.workflows.run_pass import open_pass
from ondot.model.errors import Conflict, NotFound
from ondot.model.ids import ExecutionId, TenantNo
from ondot.model.workflow.spec import Tolerate
from ondot.model.workflow.states import StepState
from ondot.ports.objects import Objects
from ondot.store.audit import By, record
from ondot.store.database import Database
from ondot.store.maps import MapRow, find_maps, set_map
from ondot.store.runs import lock_run


async def change_map(
    database: Database,
    dispatcher: Dispatcher,
    tenant_no: TenantNo,
    run_id: ExecutionId,
    step: str,
    *,
    concurrency: int | None,
    tolerate: Tolerate | None,
    by: By,
    objects: Objects | None = None,
) -> MapRow:
    """None: it stays as it is. Returns the map as it is then."""
    async with database.transaction() as connection:
        run = await lock_run(connection, run_id, tenant_no)
        work = None if run is None else await open_pass(database, connection, run)
        if work is None:
            raise NotFound(f"There is no run {run_id}.")
        no = work.graph.numbers.get(step)
        if no is None:
            raise NotFound(f"The run {run_id} has no step '{step[:100]}'.")
        if work.graph.steps[no].map is None:
            raise Conflict(f"Step '{step}' is not mapped: only a step with `map` has these limits.")
        await work.load({no})
        state = work.progress.rows[no].state
        before = (await find_maps(connection, tenant_no, run_id, [no])).get(no)
        if before is None or state is not StepState.RELEASED:
            raise Conflict(
                f"Step '{step}' is {state}: its limits can be changed only while it runs."
                " Change the workflow for later runs."
            )
        await set_map(
            connection,
            tenant_no,
            run_id,
            no,
            concurrency=concurrency,
            tolerate=tolerate,
            sets_concurrency=concurrency is not None,
            sets_tolerate=tolerate is not None,
        )
        after = (await find_maps(connection, tenant_no, run_id, [no]))[no]
        detail = {"name": work.spec.name, "step": step}
        await record(
            connection, tenant_no, by, "step.limits", run_id, detail, before=_shown(before), after=_shown(after)
        )
    await advance_run(database, dispatcher, run_id, objects)
    return after


def _shown(row: MapRow) -> dict[str, object]:
    tolerate = row.tolerate
    return {
        "concurrency": row.concurrency,
        "tolerate": None if tolerate is None else {"count": tolerate.count, "percent": tolerate.percent},
    }
