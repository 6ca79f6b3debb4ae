"""``depgraph apply``: a program as a CUDA graph with only its real edges."""

import json
import os
from pathlib import Path

import click

from depgraph.cli.options import shared, values

_PROGRAM = "program"


class _Apply(shared.Command):
    """Takes what stands behind -- for the program."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own = args
        if "--" in args:
            at = args.index("--")
            own, ctx.meta[_PROGRAM] = args[:at], args[at + 1 :]
        return super().parse_args(ctx, own)

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_usage(ctx.command_path, "[OPTIONS] [STORE] -- PROGRAM...")


@click.command("apply", cls=_Apply)
@shared.store_argument
@click.option(
    "--max-extra-memory", type=values.size(least=0), metavar="SIZE",
    help="GPU memory for buffers that kernels otherwise share [default: as the program says].",
)  # fmt: skip
@click.option(
    "--add-to", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
    help="Add what was predicted and measured to a file, a JSON object a line.",
)  # fmt: skip
@shared.details_option
@shared.format_option
def command(store: Path, max_extra_memory: int | None, add_to: Path | None) -> None:
    """Run a program as CUDA graphs that have only its real edges, and check them.

    \b
      depgraph apply -- python infer.py

    The program calls depgraph.torch.parallelize on a model or function. If STORE is not there,
    it is recorded first, for the times to predict with. Of the graphs that no value of its tensors
    makes wrong the fastest is used that gives what the function gives; what was predicted stands
    beside what was measured.
    """  # noqa: D301 - click takes the character, not two of them
    from depgraph.apply.applied import read_applied
    from depgraph.apply.recorded import APPLY_MEMORY, APPLY_REPORT, APPLY_STORE
    from depgraph.errors import ApplyError
    from depgraph.reports.tables.apply_table import apply_report
    from depgraph.store.companions import captures_of, check_companions
    from depgraph.store.store import Store
    from depgraph.store.tables import is_store
    from depgraph.system.output import new_file, work_folder

    program = click.get_current_context().meta.get(_PROGRAM)
    if not program:
        message = "give the program behind --, such as: depgraph apply -- python infer.py"
        raise click.UsageError(message)
    settings = {} if max_extra_memory is None else {APPLY_MEMORY: str(max_extra_memory)}
    if is_store(store):
        if not captures_of(store).is_file():
            raise ApplyError(
                f"{store}: recorded without depgraph.torch.parallelize",
                "call it in the program, and name a store that is not there yet",
            )
        check_companions(Store(store))
    with work_folder(store.absolute().parent, "apply") as folder:
        settings |= {APPLY_STORE: str(store.absolute()), APPLY_REPORT: str(folder)}
        code = _run(program, settings)
        left = sorted(folder.glob("applied-*.json"))
        found = [each for path in left for each in read_applied(path)]
    if code:
        click.get_current_context().exit(code)
    if not found:
        raise ApplyError(
            f"{program[0]} did not call depgraph.torch.parallelize", "there is nothing to apply"
        )
    if add_to is not None:
        before = add_to.read_text(encoding="utf-8") if add_to.is_file() else ""
        with new_file(add_to, force=True) as file:
            rows = "".join(json.dumps(each.row()) + "\n" for each in found)
            file.write_text(before + rows, encoding="utf-8")
    shared.print_report(apply_report(found))


def _run(program: list[str], settings: dict[str, str]) -> int:
    import subprocess

    from depgraph.errors import ApplyError

    try:
        done = subprocess.run(  # noqa: S603 - what the user asked for
            program, env={**os.environ, **settings}, check=False
        )
    except OSError as error:
        raise ApplyError(f"{program[0]}: {error.strerror}", "give the program behind --") from None
    return 128 - done.returncode if done.returncode < 0 else done.returncode
