"""The log cannot be emptied either: TRUNCATE fires no trigger of rows, so it gets one of its own.

A database that says `paceline.truncate = on` for itself, as those of tests do between two tests, may.
"""

from django.db import migrations

FORWARD = """
CREATE FUNCTION journal_event_is_not_emptied() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('paceline.truncate', true) = 'on' THEN
        RETURN NULL;
    END IF;
    RAISE EXCEPTION 'the log is append-only';
END $$;
CREATE TRIGGER journal_event_no_truncate BEFORE TRUNCATE ON journal_event
    FOR EACH STATEMENT EXECUTE FUNCTION journal_event_is_not_emptied();
"""

BACKWARD = """
DROP TRIGGER journal_event_no_truncate ON journal_event;
DROP FUNCTION journal_event_is_not_emptied();
"""


class Migration(migrations.Migration):
    dependencies = [("journal", "0002_append_only")]
    operations = [migrations.RunSQL(FORWARD, BACKWARD)]
