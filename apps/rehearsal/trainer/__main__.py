"""`python -m apps.rehearsal.trainer`."""

import os
import sys

for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    # Before numpy is imported: many ranks share the machine, and threads of a library don't survive a fork.
    os.environ.setdefault(name, "1")

from apps.rehearsal.trainer.main import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
