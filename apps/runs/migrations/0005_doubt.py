import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("runs", "0004_stopping_as"),
    ]

    operations = [
        migrations.CreateModel(
            name="Doubt",
            fields=[
                (
                    "attempt",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="doubt",
                        serialize=False,
                        to="runs.attempt",
                    ),
                ),
                ("from_step", models.BigIntegerField()),
            ],
        ),
    ]
