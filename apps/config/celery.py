"""The Celery application: one static schedule, four queues, tasks that carry ids only."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "apps.config.settings")

app = Celery("paceline")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
