"""The bodies that runs and attempts are written with."""

from typing import Any

from rest_framework import serializers

from apps.common.api import RequestFields
from apps.runs.choices import EndReason, Mode

BIGGEST = 2**53
"""Whole numbers past this are not whole any more in other people's JSON readers."""


class RunFields(RequestFields):
    """`PUT runs/{slug}`."""

    name = serializers.CharField(max_length=200, required=False)
    cluster = serializers.CharField(max_length=63, required=False)
    team = serializers.CharField(max_length=63, required=False, allow_blank=True)
    external_id = serializers.CharField(max_length=200, required=False, allow_blank=True)
    model = serializers.DictField(required=False)
    layout = serializers.DictField(required=False)
    checkpoint = serializers.DictField(required=False)
    framework = serializers.DictField(required=False)
    tokens_per_step = serializers.IntegerField(min_value=1, max_value=BIGGEST, required=False, allow_null=True)
    tokens_planned = serializers.IntegerField(min_value=1, max_value=BIGGEST, required=False, allow_null=True)
    steps_planned = serializers.IntegerField(min_value=1, max_value=BIGGEST, required=False, allow_null=True)
    gpus_per_node = serializers.IntegerField(min_value=1, max_value=64, required=False, allow_null=True)
    gpu_model = serializers.CharField(max_length=100, required=False, allow_blank=True)
    dtype = serializers.CharField(max_length=16, required=False, allow_blank=True)
    due_at = serializers.DateTimeField(required=False, allow_null=True)
    mode = serializers.ChoiceField(choices=Mode.values, required=False)
    modes = serializers.DictField(child=serializers.ChoiceField(choices=Mode.values), required=False)
    limits = serializers.DictField(required=False)
    launcher = serializers.DictField(required=False)

    def validate_checkpoint(self, value: dict[str, Any]) -> dict[str, Any]:
        for name in ("interval_steps", "interval_s"):
            number = value.get(name)
            if number is not None and (isinstance(number, bool) or not isinstance(number, int | float) or number <= 0):
                raise serializers.ValidationError(f"{name} must be a number above 0.")
        return value


class AttemptFields(RequestFields):
    """`POST runs/{run}/attempts`."""

    key = serializers.CharField(max_length=200)
    world_size = serializers.IntegerField(min_value=1)
    resumed_from_step = serializers.IntegerField(min_value=0, max_value=BIGGEST, required=False, allow_null=True)
    nodes = serializers.ListField(child=serializers.CharField(max_length=255), required=False, max_length=20_000)
    external_id = serializers.CharField(max_length=200, required=False, allow_blank=True)
    config = serializers.DictField(required=False)
    code_version = serializers.CharField(max_length=100, required=False, allow_blank=True)
    force = serializers.BooleanField(required=False, default=False)


class EndFields(RequestFields):
    """`POST attempts/{a}/end`."""

    reason = serializers.ChoiceField(choices=EndReason.values)
