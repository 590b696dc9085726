from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('runs', '0002_suspect_from_step'),
    ]

    operations = [
        migrations.AddField(
            model_name='checkpoint',
            name='fastest_s',
            field=models.FloatField(null=True),
        ),
    ]
