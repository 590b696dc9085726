from django.apps import AppConfig
from django.db.backends.signals import connection_created


class CommonConfig(AppConfig):
    name = "apps.common"
    label = "common"

    def ready(self) -> None:
        from apps.common.loaders import far_times_read

        connection_created.connect(far_times_read, dispatch_uid="far_times_read")
