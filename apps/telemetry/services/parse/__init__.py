"""From a report's bytes to typed parts, with a refusal for each value that is none."""

from apps.telemetry.services.parse.parts import Beat, Event, Place, Save
from apps.telemetry.services.parse.report import Parsed, report_parse
from apps.telemetry.services.parse.steps import PRODUCED_NAN, Refused, Samples

__all__ = ["PRODUCED_NAN", "Beat", "Event", "Parsed", "Place", "Refused", "Samples", "Save", "report_parse"]
