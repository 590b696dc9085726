"""Everything that writes incidents, notes and notices."""

from apps.incidents.services.absorb import findings_absorb
from apps.incidents.services.counts import counts_mend
from apps.incidents.services.notes import note_add, note_edit, note_pin, notes_add
from apps.incidents.services.notices import (
    mail_folder,
    mail_recipients,
    notice_target_enable,
    notice_target_put,
    notices_send,
)
from apps.incidents.services.shared import SHARED, TOGETHER, nodes_down_together, shared_cause_see
from apps.incidents.services.work import (
    incident_acknowledge,
    incident_assign,
    incident_mitigate,
    incident_resolve,
    incidents_mitigated_by,
    incidents_settle,
    watch_check,
)

__all__ = [
    "SHARED",
    "TOGETHER",
    "counts_mend",
    "findings_absorb",
    "incident_acknowledge",
    "incident_assign",
    "incident_mitigate",
    "incident_resolve",
    "incidents_mitigated_by",
    "incidents_settle",
    "mail_folder",
    "mail_recipients",
    "nodes_down_together",
    "note_add",
    "note_edit",
    "note_pin",
    "notes_add",
    "notice_target_enable",
    "notice_target_put",
    "notices_send",
    "shared_cause_see",
    "watch_check",
]
