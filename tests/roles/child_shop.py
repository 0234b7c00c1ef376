"""Functions that share ondot's database from a child process: `tests.roles.child_shop:app`."""

import asyncio
import os

from ondot import Context, Ondot

app = Ondot()


@app.job
async def looks_on() -> None:
    """It has no use for a transaction."""


@app.job
async def pays(ctx: Context, then: str = "return") -> str:
    async with ctx.transaction() as connection:
        await connection.execute("INSERT INTO effect VALUES (1)")
        ctx.set_result({"paid": 7})
        if then == "die inside":
            os._exit(3)
        if then == "wait inside":
            ctx.log("inside")
            await asyncio.Event().wait()
    if then == "raise":
        raise ValueError("too late")
    if then == "die":
        os._exit(3)
    return "ignored"


@app.job
def pays_in_a_loop_of_its_own(ctx: Context) -> None:
    asyncio.run(pays.function(ctx))


@app.job
async def pays_at_the_second_try(ctx: Context) -> list[str]:
    errors: list[str] = []
    for divisor in (0, 1, 1):
        try:
            async with ctx.transaction() as connection:
                await connection.execute("INSERT INTO effect VALUES (1 / $1::integer)", divisor)
                ctx.set_result(errors)
        except Exception as error:  # noqa: BLE001 - its message is what the test checks
            errors.append(str(error))
    return errors
