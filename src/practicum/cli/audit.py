"""`practicum audit`: domains one by one, then a table, every fault, and a verdict."""

import asyncio
from collections.abc import Sequence

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from practicum.cli.progress import Watch
from practicum.cli.screen import stderr, stdout
from practicum.core import RecipeError
from practicum.domains import Domain, domain_names, get_domain
from practicum.evaluate.audit import AuditReport, audit, audit_table, faults
from practicum.evaluate.mutants import MutationReport, mutants, mutants_table
from practicum.sandbox.choose import open_boxes


def run_audit(
    names: Sequence[str], family: str | None, *, with_mutants: bool, as_json: bool
) -> None:
    """Audit domains and print what was found; exits with 1 when one did not pass."""
    console = stdout()
    watched = stderr() if as_json else console
    domains = _chosen(names, family)
    reports = audit_domains(watched, domains)
    mutation = _mutants(watched, domains) if with_mutants else None
    if as_json:
        found = {"passed": _passed(reports, mutation), "domains": reports, "mutants": mutation}
        typer.echo(msgspec.json.format(msgspec.json.encode(found), indent=2))
    else:
        console.print(audit_table(reports))
        for line in (line for report in reports for line in faults(report)):
            console.print(Text(line, style="red"), soft_wrap=True)
        if mutation:
            console.print(mutants_table(mutation))
        failed = sum(not report.passed for report in reports)
        console.print(f"{len(reports) - failed} of {len(reports)} domains passed")
    if not _passed(reports, mutation):
        raise typer.Exit(1)


def audit_domains(console: Console, domains: Sequence[Domain]) -> list[AuditReport]:
    """Audit domains one after the other, telling which."""

    async def every() -> list[AuditReport]:
        boxes = open_boxes()
        try:
            reports = []
            for done, domain in enumerate(domains, 1):
                reports.append(await audit(domain, boxes))
                if not reports[-1].passed:
                    watch.note(f"{domain.name} did not pass")
                watch.step("audit", done, {})
            return reports
        finally:
            await boxes.close()

    with Watch(console) as watch:
        watch.stage("audit", len(domains))
        return asyncio.run(every())


def require_passed(reports: Sequence[AuditReport], console: Console) -> None:
    """Raise RecipeError, and show the table, unless all passed."""
    failed = [report for report in reports if not report.passed]
    if failed:
        console.print(audit_table(reports))
        lines = [line for report in failed for line in faults(report)]
        raise RecipeError("\n".join(["domains that did not pass their audit:", *lines]))


def _chosen(names: Sequence[str], family: str | None) -> list[Domain]:
    wanted = list(dict.fromkeys(names)) or domain_names(family)
    domains = [get_domain(name) for name in wanted]
    chosen = [domain for domain in domains if family in (None, domain.family)]
    if not chosen:
        known = sorted({get_domain(name).family for name in domain_names()})
        raise typer.BadParameter(
            f"no domain of family {family!r} is meant; there are {', '.join(known)}"
        )
    return chosen


def _mutants(console: Console, domains: Sequence[Domain]) -> MutationReport:
    async def every() -> MutationReport:
        boxes = open_boxes()
        try:
            return await mutants(domains, boxes, progress=tell)
        finally:
            await boxes.close()

    def tell(done: int, total: int) -> None:
        if done == 1:
            watch.stage("mutants", total)
        watch.step("mutants", done, {})

    with Watch(console) as watch:
        return asyncio.run(every())


def _passed(reports: Sequence[AuditReport], mutation: MutationReport | None) -> bool:
    return all(report.passed for report in reports) and (mutation is None or mutation.passed)
