"""The clockwork names tasks that exist, and every task says where it runs."""

from django.conf import settings

from apps.config.celery import app
from apps.config.pipeline import QUEUES, ROUTES, SWEEPS, TASKS

app.loader.import_default_modules()
OURS = {name: task for name, task in app.tasks.items() if not name.startswith("celery.")}


class TestPipeline:
    def test_every_sweep_and_task_exists(self) -> None:
        assert set(ROUTES) - set(OURS) == set()

    def test_every_task_has_a_queue_that_a_worker_serves(self) -> None:
        assert set(OURS) == set(ROUTES)
        assert {route["queue"] for route in ROUTES.values()} <= set(QUEUES)

    def test_buttons_and_clocks_do_not_share_a_queue_with_the_fold(self) -> None:
        folding = {name for name, route in ROUTES.items() if route["queue"] == "fold"}

        assert all(name.startswith("telemetry.") for name in folding)

    def test_beat_runs_exactly_the_sweeps(self) -> None:
        assert set(settings.CELERY_BEAT_SCHEDULE) == set(SWEEPS)
        assert not set(TASKS) & set(SWEEPS)

    def test_a_task_takes_ids_and_whatever_a_later_version_adds(self) -> None:
        import inspect

        for name, task in OURS.items():
            parameters = inspect.signature(task.run).parameters.values()
            assert any(p.kind is p.VAR_KEYWORD for p in parameters), name
            assert all(p.name.endswith("_id") for p in parameters if p.kind is not p.VAR_KEYWORD), name
