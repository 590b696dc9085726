"""The clock: sends each sweep's name to its queue when it is due.

A Celery application of its own, without Django and without the tasks: half the memory of `apps.config.celery`, and a
mistake in any room cannot stop it. `celery --app apps.config.beat:app beat --scheduler celery.beat:Scheduler`; the
schedule is code and kept in memory, so there is nothing on disk that a crash could spoil.
"""

import os

os.environ.pop("DJANGO_SETTINGS_MODULE", None)  # else Celery would load Django by itself

from celery import Celery

app = Celery("paceline-beat", set_as_current=False)
app.config_from_object("apps.config.settings", namespace="CELERY")
