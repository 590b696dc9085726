"""The bodies that runs and attempts are written with."""

from datetime import datetime
from typing import Any

from rest_framework import serializers

from apps.common.api import RequestFields
from apps.common.clock import usable
from apps.runs.choices import EndReason, Mode

BIGGEST = 2**53
"""Whole numbers past this are not whole any more in other people's JSON readers."""

MOST_LIMIT = 1e9
"""No threshold means anything past this: thirty years in seconds, and what clocks can still be moved by."""

MOST_DEEP = 32
MOST_WORDS = 10_000
MOST_LETTERS = 65_536


class JsonField(serializers.DictField):
    """An object of any content that is read back as it was written: no number past 2^53, and within bounds."""

    def to_internal_value(self, data: Any) -> Any:
        _check(data, room=[MOST_WORDS], deep=0)
        return super().to_internal_value(data)


def _check(value: Any, *, room: list[int], deep: int) -> None:
    """Refuse content that is past a bound; `room` counts down the values that may still come.

    Raises:
        ValidationError: it is.
    """
    room[0] -= 1
    if room[0] < 0 or deep > MOST_DEEP:
        raise serializers.ValidationError(
            f"has more than {MOST_WORDS:,} values, or is nested more than {MOST_DEEP} deep."
        )
    if isinstance(value, str):
        if len(value) > MOST_LETTERS:
            raise serializers.ValidationError(f"holds a text of more than {MOST_LETTERS:,} letters.")
    elif isinstance(value, int | float):
        if not -BIGGEST <= value <= BIGGEST:
            # PostgreSQL writes 1e20 out in digits, and whoever reads them meets a whole number past 64 bits.
            raise serializers.ValidationError("holds a number past 2^53.")
    elif isinstance(value, dict):
        for name, inner in value.items():
            _check(name, room=room, deep=deep + 1)
            _check(inner, room=room, deep=deep + 1)
    elif isinstance(value, list):
        for inner in value:
            _check(inner, room=room, deep=deep + 1)


class RunFields(RequestFields):
    """`PUT runs/{slug}`."""

    name = serializers.CharField(max_length=200, required=False)
    cluster = serializers.CharField(max_length=63, required=False)
    team = serializers.CharField(max_length=63, required=False, allow_blank=True)
    external_id = serializers.CharField(max_length=200, required=False, allow_blank=True)
    model = JsonField(required=False)
    layout = JsonField(required=False)
    checkpoint = JsonField(required=False)
    framework = JsonField(required=False)
    tokens_per_step = serializers.IntegerField(min_value=1, max_value=BIGGEST, required=False, allow_null=True)
    tokens_planned = serializers.IntegerField(min_value=1, max_value=BIGGEST, required=False, allow_null=True)
    steps_planned = serializers.IntegerField(min_value=1, max_value=BIGGEST, required=False, allow_null=True)
    gpus_per_node = serializers.IntegerField(min_value=1, max_value=64, required=False, allow_null=True)
    gpu_model = serializers.CharField(max_length=100, required=False, allow_blank=True)
    dtype = serializers.CharField(max_length=16, required=False, allow_blank=True)
    due_at = serializers.DateTimeField(required=False, allow_null=True)
    mode = serializers.ChoiceField(choices=Mode.values, required=False)
    modes = JsonField(child=serializers.ChoiceField(choices=Mode.values), required=False)
    limits = JsonField(required=False)
    launcher = JsonField(required=False)

    def validate_due_at(self, value: datetime | None) -> datetime | None:
        if value is not None and usable(value) is None:
            raise serializers.ValidationError("must lie in the years 1970 to 8999.")
        return value

    def validate_checkpoint(self, value: dict[str, Any]) -> dict[str, Any]:
        for name in ("interval_steps", "interval_s"):
            number = value.get(name)
            if number is not None and (isinstance(number, bool) or not isinstance(number, int | float) or number <= 0):
                raise serializers.ValidationError(f"{name} must be a number above 0.")
        return value

    def validate_limits(self, value: dict[str, Any]) -> dict[str, Any]:
        for name, number in value.items():
            if isinstance(number, int | float) and not -MOST_LIMIT <= number <= MOST_LIMIT:
                raise serializers.ValidationError(f"{name} must be at most {MOST_LIMIT:g}.")
        return value


class AttemptFields(RequestFields):
    """`POST runs/{run}/attempts`."""

    key = serializers.CharField(max_length=200)
    world_size = serializers.IntegerField(min_value=1)
    resumed_from_step = serializers.IntegerField(min_value=0, max_value=BIGGEST, required=False, allow_null=True)
    nodes = serializers.ListField(child=serializers.CharField(max_length=255), required=False, max_length=20_000)
    external_id = serializers.CharField(max_length=200, required=False, allow_blank=True)
    config = JsonField(required=False)
    code_version = serializers.CharField(max_length=100, required=False, allow_blank=True)
    force = serializers.BooleanField(required=False, default=False)


class EndFields(RequestFields):
    """`POST attempts/{a}/end`."""

    reason = serializers.ChoiceField(choices=EndReason.values)
