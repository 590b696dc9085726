"""Names get their first label; the ledger is append-only: the database itself refuses what would edit or delete a line.

A line may be ended once. A purge says so in its own transaction.
"""

from django.db import migrations

FORWARD = """
CREATE FUNCTION fleet_ledger_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND current_setting('paceline.purge', true) = 'on' THEN
        RETURN OLD;
    END IF;
    IF TG_OP = 'UPDATE' AND TG_TABLE_NAME = 'fleet_exclusion' THEN
        IF OLD.ended_at IS NULL AND NEW.ended_at IS NOT NULL
            AND to_jsonb(NEW) - '{ended_at,ended_by_name,ended_reason}'::text[]
              = to_jsonb(OLD) - '{ended_at,ended_by_name,ended_reason}'::text[] THEN
            RETURN NEW;
        END IF;
    END IF;
    RAISE EXCEPTION 'the exclusion ledger is append-only';
END $$;
CREATE TRIGGER fleet_exclusion_append_only BEFORE UPDATE OR DELETE ON fleet_exclusion
    FOR EACH ROW EXECUTE FUNCTION fleet_ledger_is_append_only();
CREATE TRIGGER fleet_ledgernote_append_only BEFORE UPDATE OR DELETE ON fleet_ledgernote
    FOR EACH ROW EXECUTE FUNCTION fleet_ledger_is_append_only();
"""

BACKWARD = """
DROP TRIGGER fleet_ledgernote_append_only ON fleet_ledgernote;
DROP TRIGGER fleet_exclusion_append_only ON fleet_exclusion;
DROP FUNCTION fleet_ledger_is_append_only();
"""


def short_of(name):
    folded = name.casefold()
    head, _, domain = folded.partition(".")
    return folded if not domain or not head or domain.rpartition(".")[2].isdecimal() else head


def fill(apps, schema_editor):
    for kind in ("Node", "NodeAlias"):
        model = apps.get_model("fleet", kind)
        rows = [model(pk=pk, short=short_of(name)) for pk, name in model.objects.values_list("pk", "name")]
        model.objects.bulk_update(rows, ["short"], batch_size=1000)


class Migration(migrations.Migration):
    dependencies = [("fleet", "0002_names_and_ledger")]
    operations = [
        migrations.RunPython(fill, migrations.RunPython.noop),
        migrations.RunSQL(FORWARD, BACKWARD),
    ]
