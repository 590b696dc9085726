from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('remediation', '0005_exit_note'),
    ]

    operations = [
        migrations.AddField(
            model_name='order',
            name='holder',
            field=models.CharField(blank=True, max_length=200, default=''),
            preserve_default=False,
        ),
    ]
