"""Numbers of incidents: one after the other, without holes."""

from apps.incidents.models import IncidentNumber


def number_next() -> int:
    """Return the next number; a transaction that fails gives it back."""
    # The one row is locked to the end of the transaction, so that numbers are given out in order.
    row, _ = IncidentNumber.objects.select_for_update(no_key=True).get_or_create(pk=1)
    row.last += 1
    row.save()
    return row.last
