"""What can be wrong with a stored blob. Three different errors, since each asks for something else."""

from apps.engine.errors import EngineError


class TileError(EngineError):
    """A stored blob cannot be read."""

    code = "tile_error"


class TileCut(TileError):
    """Bytes are missing at the end: read the blob again, whole."""

    code = "tile_cut"
    retryable = True


class TileCorrupt(TileError):
    """The bytes are not what was written: restore the row from a backup or give its values up."""

    code = "tile_corrupt"


class TileVersionUnknown(TileError):
    """Written by a newer Paceline: upgrade this process."""

    code = "tile_version_unknown"
