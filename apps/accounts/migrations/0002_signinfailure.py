from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("accounts", "0001_initial"),
    ]

    operations = [
        migrations.CreateModel(
            name="SignInFailure",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=150)),
                ("address", models.CharField(max_length=45)),
                ("since_at", models.DateTimeField()),
                ("count", models.IntegerField(default=1)),
            ],
        ),
        migrations.AddConstraint(
            model_name="signinfailure",
            constraint=models.UniqueConstraint(fields=("name", "address"), name="accounts_signinfailure_who"),
        ),
    ]
