"""The log is append-only: the database itself refuses changes, but for a purge that says so in its own transaction."""

from django.db import migrations

FORWARD = """
CREATE FUNCTION journal_event_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND current_setting('paceline.purge', true) = 'on' THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION 'the log is append-only';
END $$;
CREATE TRIGGER journal_event_append_only BEFORE UPDATE OR DELETE ON journal_event
    FOR EACH ROW EXECUTE FUNCTION journal_event_is_append_only();
"""

BACKWARD = """
DROP TRIGGER journal_event_append_only ON journal_event;
DROP FUNCTION journal_event_is_append_only();
"""


class Migration(migrations.Migration):
    dependencies = [("journal", "0001_initial")]
    operations = [migrations.RunSQL(FORWARD, BACKWARD)]
