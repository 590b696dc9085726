"""The form in which a proposal is taken up: what the confirm page has for the same action, as things stand now."""

from dataclasses import dataclass
from datetime import datetime

from apps.common.errors import PacelineError
from apps.console.selectors.actions import ConfirmPage, confirm_page
from apps.console.selectors.suspects import price_words
from apps.fleet.selectors import node_by_id
from apps.remediation.choices import LEDGER, ActionKind, ActionState, Moment
from apps.remediation.selectors import ActionRow, action_preview
from apps.runs.selectors import run_by_id


@dataclass(frozen=True, slots=True)
class AcceptForm:
    """The choices of a proposal, what it costs with them, and the name to type, empty where none is asked for.

    `short` says that a scheduler has too few nodes for it; `confirm_why` is why the name is asked for, besides the run's size.
    """

    page: ConfirmPage
    cost: str
    confirm: str
    confirm_why: str = ""
    short: str = ""


def accept_form(action: ActionRow, *, from_step: int | None, now: datetime) -> AcceptForm | None:
    """Return the form of a proposal with `from_step` chosen; None of anything else, or where nothing can be said."""
    if action.state != ActionState.PROPOSED or action.run_id is None:
        return None
    when = action.options.get("when") or Moment.NOW
    step = from_step if from_step is not None else action.options.get("from_step")
    try:
        preview = action_preview(
            kind=action.kind,
            run=run_by_id(action.run_id),
            node=node_by_id(action.node_id) if action.node_id is not None and action.kind in LEDGER else None,
            exclude_nodes=[name for _, name in action.nodes] if action.kind == ActionKind.RESTART_RUN else (),
            from_step=step,
            reason=action.reason,
            moment=when,
            now=now,
        )
    except PacelineError:
        return None  # a node or a launcher that cannot be used any more: accepting says why
    price = preview.price_at(when) or preview.price
    return AcceptForm(
        page=confirm_page(preview, when=when, from_step=step, now=now),
        cost=price_words(price, choose=bool(preview.choose)) if price is not None else "",
        confirm=preview.confirm or "",
        confirm_why=preview.confirm_why,
        short=preview.short,
    )
