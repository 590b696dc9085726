from django.apps import AppConfig


class RehearsalConfig(AppConfig):
    name = "apps.rehearsal"
    label = "rehearsal"
