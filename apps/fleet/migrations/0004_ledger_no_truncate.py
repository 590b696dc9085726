"""The ledger cannot be emptied either: TRUNCATE fires no trigger of rows, so it gets one of its own.

A database that says `paceline.truncate = on` for itself, as those of tests do between two tests, may.
"""

from django.db import migrations

FORWARD = """
CREATE FUNCTION fleet_ledger_is_not_emptied() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('paceline.truncate', true) = 'on' THEN
        RETURN NULL;
    END IF;
    RAISE EXCEPTION 'the exclusion ledger is append-only';
END $$;
CREATE TRIGGER fleet_exclusion_no_truncate BEFORE TRUNCATE ON fleet_exclusion
    FOR EACH STATEMENT EXECUTE FUNCTION fleet_ledger_is_not_emptied();
CREATE TRIGGER fleet_ledgernote_no_truncate BEFORE TRUNCATE ON fleet_ledgernote
    FOR EACH STATEMENT EXECUTE FUNCTION fleet_ledger_is_not_emptied();
"""

BACKWARD = """
DROP TRIGGER fleet_ledgernote_no_truncate ON fleet_ledgernote;
DROP TRIGGER fleet_exclusion_no_truncate ON fleet_exclusion;
DROP FUNCTION fleet_ledger_is_not_emptied();
"""


class Migration(migrations.Migration):
    dependencies = [("fleet", "0003_ledger_append_only")]
    operations = [migrations.RunSQL(FORWARD, BACKWARD)]
