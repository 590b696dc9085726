"""How the tables are stored: blobs out of line and not compressed again, room for updates, an eager vacuum."""

from django.db import migrations

FORWARD = """
ALTER TABLE telemetry_folded ADD COLUMN seqs int8multirange NOT NULL DEFAULT '{}';
ALTER TABLE telemetry_inbox ALTER COLUMN body SET STORAGE EXTERNAL, ALTER COLUMN beats SET STORAGE EXTERNAL;
ALTER TABLE telemetry_hotblock ALTER COLUMN data SET STORAGE EXTERNAL;
ALTER TABLE telemetry_tile ALTER COLUMN data SET STORAGE EXTERNAL;
ALTER TABLE telemetry_patch ALTER COLUMN data SET STORAGE EXTERNAL;
ALTER TABLE telemetry_inbox SET (autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_insert_threshold = -1, autovacuum_analyze_scale_factor = 0.0,
    autovacuum_analyze_threshold = 20000, toast.autovacuum_vacuum_scale_factor = 0.0,
    toast.autovacuum_vacuum_threshold = 10000);
ALTER TABLE telemetry_hotblock SET (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.0,
    autovacuum_vacuum_threshold = 2000, toast.autovacuum_vacuum_scale_factor = 0.0,
    toast.autovacuum_vacuum_threshold = 20000);
ALTER TABLE telemetry_folded SET (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.0,
    autovacuum_vacuum_threshold = 5000);
ALTER TABLE telemetry_series SET (fillfactor = 50);
ALTER TABLE telemetry_column SET (fillfactor = 80);
ALTER TABLE telemetry_foldcall SET (fillfactor = 50);
"""

BACKWARD = """
ALTER TABLE telemetry_folded DROP COLUMN seqs;
"""


class Migration(migrations.Migration):
    dependencies = [("telemetry", "0001_initial")]
    operations = [migrations.RunSQL(FORWARD, BACKWARD)]
