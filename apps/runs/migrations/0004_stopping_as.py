from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('runs', '0003_checkpoint_fastest'),
    ]

    operations = [
        migrations.AddField(
            model_name='runstatus',
            name='stopping_as',
            field=models.CharField(blank=True, max_length=12, default=''),
            preserve_default=False,
        ),
    ]
