from django.apps import AppConfig


class ConfigConfig(AppConfig):
    name = "apps.config"
    label = "config"

    def ready(self) -> None:
        """Make our Celery application the current one in every process, so that web and commands can ask for work."""
        import apps.config.celery  # noqa: F401
