"""What is due is found among the open lines by the time that was said last; the first one's index serves nobody."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("fleet", "0004_ledger_no_truncate")]
    operations = [migrations.RemoveIndex(model_name="exclusion", name="fleet_exclusion_until")]
