"""The bodies that actions are asked for and decided with."""

from rest_framework import serializers

from apps.common.api import RequestFields
from apps.fleet.choices import AtUntil
from apps.remediation.choices import ActionKind, ActionState, Moment, Requeued


class OptionFields(serializers.Serializer):  # type: ignore[type-arg]
    """How an action is to be done."""

    from_step = serializers.IntegerField(min_value=0, max_value=2**53, required=False, allow_null=True)
    exclude_nodes = serializers.ListField(
        child=serializers.CharField(max_length=320), required=False, max_length=1000, allow_null=True
    )
    when = serializers.ChoiceField(choices=Moment.values, required=False, allow_null=True)
    confirm = serializers.CharField(max_length=63, required=False, allow_blank=True, allow_null=True)
    done = serializers.ChoiceField(choices=ActionKind.values, required=False, allow_null=True)
    command = serializers.CharField(max_length=4000, required=False, allow_blank=True, allow_null=True)
    passed = serializers.BooleanField(required=False, allow_null=True)
    until_at = serializers.DateTimeField(required=False, allow_null=True)
    at_until = serializers.ChoiceField(choices=AtUntil.values, required=False, allow_null=True)
    requeued = serializers.ChoiceField(choices=Requeued.values, required=False, allow_null=True)


class ExpectedFields(serializers.Serializer):  # type: ignore[type-arg]
    """What the caller saw."""

    attempt = serializers.CharField(max_length=40, required=False, allow_null=True)
    state = serializers.CharField(max_length=16, required=False, allow_null=True)
    from_step = serializers.IntegerField(min_value=0, max_value=2**53, required=False, allow_null=True)


class ActionFields(RequestFields):
    """`POST actions`."""

    kind = serializers.ChoiceField(choices=ActionKind.values)
    run = serializers.CharField(max_length=80, required=False, allow_null=True)
    node = serializers.CharField(max_length=320, required=False, allow_null=True)
    incident = serializers.CharField(max_length=40, required=False, allow_null=True)
    reason = serializers.CharField(max_length=2000, trim_whitespace=True, allow_blank=True)
    expected_state = ExpectedFields(required=False, allow_null=True)
    expires_at = serializers.DateTimeField(required=False, allow_null=True)
    options = OptionFields(required=False, allow_null=True)


class AcceptFields(RequestFields):
    """`POST actions/{id}/accept`."""

    reason = serializers.CharField(max_length=2000, required=False, allow_blank=True, default="")
    expected_state = ExpectedFields(required=False, allow_null=True)
    options = OptionFields(required=False, allow_null=True)


class ReasonFields(RequestFields):
    """`POST actions/{id}/dismiss` and `cancel`."""

    reason = serializers.CharField(max_length=2000, required=False, allow_blank=True, default="")


class SettleFields(RequestFields):
    """`POST actions/{id}/settle`."""

    outcome = serializers.ChoiceField(choices=[ActionState.SUCCEEDED, ActionState.FAILED])
    reason = serializers.CharField(max_length=2000, allow_blank=True)
